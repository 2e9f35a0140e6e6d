"""Writes cases/facts.txt: a line a country, with its capital, currency, language and code.

    pip install babel pycountry
    python tools/models/shipped/make_facts.py

Capitals are in cases/capitals.txt, by ISO 3166 code, from common knowledge. Names, currencies and languages are
those of Unicode's CLDR (babel), three-letter codes those of ISO 3166 (pycountry).
"""

from pathlib import Path

import pycountry
from babel import Locale
from babel.languages import get_official_languages
from babel.numbers import get_territory_currencies

CASES = Path(__file__).parent / "cases"


def main() -> None:
    english = Locale("en")
    lines = []
    for line in (CASES / "capitals.txt").read_text(encoding="utf-8").splitlines():
        code, capital = line.split(" ", 1)
        languages = get_official_languages(code) or get_official_languages(code, de_facto=True)
        row = (
            english.territories[code].replace("Türkiye", "Turkey"),
            capital,
            english.currencies[get_territory_currencies(code)[0]],
            english.languages[languages[0].split("_")[0]],
            pycountry.countries.get(alpha_2=code).alpha_3,
        )
        lines.append("|".join(row))
    (CASES / "facts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
