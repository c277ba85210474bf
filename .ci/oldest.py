"""Print a requirement each for the oldest versions that setup.cfg promises and that exist for this Python."""

import configparser
import re
import subprocess
import sys

settings = configparser.ConfigParser()
settings.read("setup.cfg")
for line in settings["options"]["install_requires"].split():
    name, bound = re.match(r"([\w-]+)>=([\d.]+)", line).groups()
    asked = [sys.argv[1], "-m", "pip", "index", "versions", name, "--only-binary", ":all:"]
    text = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    known = re.search(r"Available versions: (.*)", text)[1].split(", ")
    found = sorted(tuple(map(int, v.split("."))) for v in known if re.fullmatch(r"[\d.]+", v))
    least = tuple(map(int, bound.split(".")))
    oldest = next(v for v in found if v >= least)
    print(f"{name}=={'.'.join(map(str, oldest))}")
