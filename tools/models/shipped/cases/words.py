"""Names and things that several kinds of cases share."""

import random


def listed(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


FIRST = listed(
    "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Maria Nils Olga Paul Quinn Rosa Sven Tina Uwe Vera "
    "Walter Xenia Yara Zoe Alma Bruno Celia Dario Elsa Frida Gustav Hanna Ivan Julia Kurt Lena Milo Nora Otto Petra "
    "Ruth Simon Tom Ursula Victor Wanda Amir Bao Chen Diego Fatima Goran Hiro Ines Jamal Kofi Luz Mina Noor Omar Priya"
)
CITIES = listed(
    "Oslo Bergen Paris Lyon Berlin Hamburg Madrid Porto Lisbon Rome Milan Vienna Graz Prague Warsaw Athens Dublin Cork "
    "London Leeds Cairo Nairobi Lagos Accra Delhi Mumbai Tokyo Osaka Kyoto Seoul Sydney Perth Toronto Boston Chicago "
    "Denver Austin Lima Quito Bogota Havana Ankara Kyiv Riga Tallinn Geneva Zurich Basel Bern Turin"
)
MONTHS = listed("January February March April May June July August September October November December")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_STARTS = listed("B D F G H K L M N P R S T V Ber Kar Lin Mor Nor Sand Stein Wes Hol Al El Tor Bran Gal")
_MIDDLES = listed("a e i o u an en in on ar er or al el il")
_ENDS = listed("berg son ter man ley dal mann ova ini ez ik sen ton ford wick ska")


def surname(rng: random.Random) -> str:
    """Return a surname from syllables, so that it must be copied and cannot be known."""
    return rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_ENDS)


def full_name(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {surname(rng)}"
