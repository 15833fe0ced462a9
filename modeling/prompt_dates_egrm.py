"""A date that stays: some chat templates write today's, and a prompt must be the same tomorrow."""

import re
from datetime import date

from .errors_egrm import ConfigError


DEFAULT_DATE = "2025-01-01"
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def asks_for_the_date(template: str) -> bool:
    """Whether a chat template may write the day on which it is rendered.

    Args:
        template: Its source.
    """
    return re.search(r"\bstrftime_now\b", template) is not None


def with_fixed_date(template: str, day: str) -> str:
    """A chat template that writes one day, whenever it is rendered; names are English whatever the locale.

    Args:
        template: Its source.
        day: The day, as `2025-01-01`.
    """
    if not asks_for_the_date(template):
        return template
    # Data that templates are given cannot hold functions, hence a macro under the function's name.
    steps = "".join(f" | replace('{code}', '{text}')" for code, text in _texts(read_date(day)).items())
    return f"{{%- macro strftime_now(format) -%}}{{{{ format{steps} }}}}{{%- endmacro %}}{{{{ '' }}}}{template}"


def read_date(day: object) -> date:
    """The day that a text names.

    Raises:
        ConfigError: It names none.
    """
    try:
        return date.fromisoformat(str(day))
    except ValueError:
        raise ConfigError(f"`template_date` must be a day such as {DEFAULT_DATE}, got {day!r}.") from None


def _texts(day: date) -> dict[str, str]:
    """What each code of a format stands for, at midnight."""
    month, weekday, number = _MONTHS[day.month - 1], _DAYS[day.weekday()], day.timetuple().tm_yday
    numbers = {"d": day.day, "m": day.month, "y": day.year % 100, "H": 0, "M": 0, "S": 0, "I": 12}
    return {
        **{f"%-{code}": str(value) for code, value in numbers.items()},
        **{f"%{code}": f"{value:02d}" for code, value in numbers.items()},
        "%e": f"{day.day:2d}", "%Y": f"{day.year:04d}", "%B": month, "%b": month[:3], "%A": weekday, "%a": weekday[:3],
        "%j": f"{number:03d}", "%p": "AM", "%F": day.isoformat(), "%T": "00:00:00",
        "%w": str(day.isoweekday() % 7), "%u": str(day.isoweekday()), "%f": "000000", "%z": "", "%Z": "",
    }  # fmt: skip


__all__ = ["DEFAULT_DATE", "asks_for_the_date", "read_date", "with_fixed_date"]
