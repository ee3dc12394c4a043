"""Prints what the demo's result file must hold, computed apart from it: revenue by region, largest first."""

import collections
import csv
import decimal
import sys

revenue = collections.Counter()
with open(sys.argv[1], newline="") as file:
    for row in csv.DictReader(file):
        revenue[row["region"]] += int(row["units"]) * decimal.Decimal(row["unit_price"])
print("region,revenue")
for region, total in sorted(revenue.items(), key=lambda item: (-item[1], item[0])):
    print(f"{region},{total:.2f}")
