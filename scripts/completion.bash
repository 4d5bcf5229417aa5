# Completes experiment=, variant=, model=, data=, ... of train.py by tab, in bash:  source scripts/completion.bash
_plstm() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##* } script
    [[ $line =~ ([^ ]*)train\.py\  ]] || return
    script=${BASH_REMATCH[1]}
    local configs=${script:-./}configs
    if [[ $word != *=* ]]; then
        COMPREPLY=($(compgen -S = -W "$(cd "$configs" && ls -d -- */ | tr -d / | grep -vxE 'hydra|local|study')" -- "$word"))
        compopt -o nospace
        return
    fi
    local group=${word%%=*} value=${word#*=}
    local last=${value##*,}
    local before=${value%"$last"} # of a sweep
    [[ $COMP_WORDBREAKS == *=* ]] || before=$group=$before
    [[ -d $configs/$group ]] || return
    COMPREPLY=($(compgen -P "$before" -W "$(cd "$configs/$group" && find . -name '*.yaml' | sed 's|^\./||; s|\.yaml$||')" -- "$last"))
}
complete -o default -F _plstm python python3
