//! The date that the function `strftime_now` of a chat template prints: [`Date`].

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// The environment variable that sets the date, in seconds since the start of 1970. Other programs honour it too, to
/// make their outputs reproducible.
const FIXED: &str = "SOURCE_DATE_EPOCH";

/// The latest date that `SOURCE_DATE_EPOCH` may set, in seconds since the start of 1970 (UTC): the last second of the
/// year 9999.
const LAST: u64 = 253_402_300_799;

/// The maximum length, in bytes, of the format string that a template may pass to `strftime_now`.
const LONGEST: usize = 256;

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date and time in UTC. A chat template stores the date when it is opened, so that all of its conversations have the
/// same date.
#[derive(Clone, Debug)]
pub(crate) struct Date {
    /// The date in seconds since the start of 1970 (UTC), or the invalid value of the environment variable [`FIXED`].
    seconds: Result<u64, String>,
    /// Whether the environment variable [`FIXED`] sets the date. If not, it is today's date.
    is_fixed: bool,
}

impl Date {
    /// Returns the date that `SOURCE_DATE_EPOCH` sets, or else today's date.
    pub(crate) fn now() -> Self {
        let fixed = env::var_os(FIXED).map(|value| value.to_string_lossy().into_owned());
        Self::new(fixed.filter(|value| !value.is_empty()))
    }

    fn new(fixed: Option<String>) -> Self {
        let is_fixed = fixed.is_some();
        let today = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let valid = |value: String| value.parse().ok().filter(|&seconds| seconds <= LAST).ok_or(value);
        Self { seconds: fixed.map_or_else(|| Ok(today()), valid), is_fixed }
    }

    /// Returns the date that `SOURCE_DATE_EPOCH` sets, in seconds since the start of 1970, or the variable's invalid
    /// value. Returns `None` for today's date, which differs between runs.
    pub(crate) fn fixed(&self) -> Option<&Result<u64, String>> {
        Some(&self.seconds).filter(|_| self.is_fixed)
    }

    /// Formats the date as Python's `strftime` does, in UTC.
    ///
    /// # Errors
    /// Returns the reason as a string if `SOURCE_DATE_EPOCH` has an invalid value, if `format` is longer than
    /// [`LONGEST`] bytes, or if a directive such as `%Q` is unknown.
    pub(crate) fn format(&self, format: &str) -> Result<String, String> {
        let seconds = self.seconds.as_ref().map_err(|value| {
            format!("the environment variable {FIXED} is `{value}` and not a number of seconds from 0 to {LAST}")
        })?;
        if format.len() > LONGEST {
            return Err(format!("a format of strftime_now has {} bytes, and may have {LONGEST}", format.len()));
        }
        let moment = Moment::new(*seconds);
        let mut text = String::new();
        let mut letters = format.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                text.push(letter);
                continue;
            }
            let next = letters.next();
            let (is_short, directive) = if next == Some('-') { (true, letters.next()) } else { (false, next) };
            let written = directive.and_then(|directive| moment.field(directive, is_short));
            text += &written.ok_or_else(|| {
                let shown: String = directive.into_iter().collect();
                format!("strftime_now does not know `%{}{shown}`", if is_short { "-" } else { "" })
            })?;
        }
        Ok(text)
    }
}

/// A date and time in UTC, split into year, month, day and so on.
struct Moment {
    year: u64,
    /// The zero-based month: 0 for January.
    month: usize,
    day: u64,
    day_of_year: u64,
    weekday: &'static str,
    /// The time of day in seconds since midnight (UTC).
    seconds: u64,
}

impl Moment {
    /// Splits a UTC time into year, month, day and so on. `seconds` is the time in seconds since the start of 1970; the
    /// time must be before the year 10000.
    fn new(seconds: u64) -> Self {
        let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let days = seconds / 86_400;
        let (mut year, mut rest) = (1970, days);
        while rest >= 365 + u64::from(is_leap(year)) {
            rest -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = rest;
        let february = 28 + u64::from(is_leap(year));
        let mut month = 0;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if rest < length {
                break;
            }
            rest -= length;
            month += 1;
        }
        let weekday = DAYS[(days % 7) as usize];
        Self { year, month, day: rest + 1, day_of_year: day_of_year + 1, weekday, seconds: seconds % 86_400 }
    }

    /// Returns the text for a directive of a date format, such as the year for `Y` (`%Y`). If `is_short`, as for `%-d`,
    /// numbers have no leading zeros. Returns `None` for an unknown directive.
    fn field(&self, directive: char, is_short: bool) -> Option<String> {
        let number = |number: u64, width: usize| match is_short {
            true => number.to_string(),
            false => format!("{number:0width$}"),
        };
        let joined = |parts: &str| parts.chars().map(|part| self.field(part, false).unwrap_or(part.into())).collect();
        let (hour, month) = (self.seconds / 3600, MONTHS[self.month]);
        Some(match directive {
            'a' => self.weekday[..3].into(),
            'A' => self.weekday.into(),
            'b' | 'h' => month[..3].into(),
            'B' => month.into(),
            'd' => number(self.day, 2),
            'D' => joined("m/d/y"),
            'e' if is_short => self.day.to_string(),
            'e' => format!("{:2}", self.day),
            'F' => joined("Y-m-d"),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'j' => number(self.day_of_year, 3),
            'm' => number(self.month as u64 + 1, 2),
            'M' => number(self.seconds / 60 % 60, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'S' => number(self.seconds % 60, 2),
            'T' => joined("H:M:S"),
            'y' => number(self.year % 100, 2),
            'Y' => self.year.to_string(),
            '%' if !is_short => "%".into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests dates against `datetime.fromtimestamp(seconds, timezone.utc).strftime(format)` of Python 3.11 on Linux.
    #[test]
    fn dates_are_those_of_python() {
        let formats =
            ["%a %A %b %B %d %e %H %I %j %m %M %p %S %y %Y %F %T %D %h %%", "%d %b %Y|%-d.%-m.%-y %-H:%-M:%-S %-I %-j"];
        let expected = [
            (
                0,
                "Thu Thursday Jan January 01  1 00 12 001 01 00 AM 00 70 1970 1970-01-01 00:00:00 01/01/70 Jan %",
                "01 Jan 1970|1.1.70 0:0:0 12 1",
            ),
            (
                951_782_399,
                "Mon Monday Feb February 28 28 23 11 059 02 59 PM 59 00 2000 2000-02-28 23:59:59 02/28/00 Feb %",
                "28 Feb 2000|28.2.0 23:59:59 11 59",
            ),
            (
                951_782_400,
                "Tue Tuesday Feb February 29 29 00 12 060 02 00 AM 00 00 2000 2000-02-29 00:00:00 02/29/00 Feb %",
                "29 Feb 2000|29.2.0 0:0:0 12 60",
            ),
            (
                1_719_964_800,
                "Wed Wednesday Jul July 03  3 00 12 185 07 00 AM 00 24 2024 2024-07-03 00:00:00 07/03/24 Jul %",
                "03 Jul 2024|3.7.24 0:0:0 12 185",
            ),
            (
                1_735_689_599,
                "Tue Tuesday Dec December 31 31 23 11 366 12 59 PM 59 24 2024 2024-12-31 23:59:59 12/31/24 Dec %",
                "31 Dec 2024|31.12.24 23:59:59 11 366",
            ),
            (
                4_107_542_400,
                "Mon Monday Mar March 01  1 00 12 060 03 00 AM 00 00 2100 2100-03-01 00:00:00 03/01/00 Mar %",
                "01 Mar 2100|1.3.0 0:0:0 12 60",
            ),
            (
                LAST,
                "Fri Friday Dec December 31 31 23 11 365 12 59 PM 59 99 9999 9999-12-31 23:59:59 12/31/99 Dec %",
                "31 Dec 9999|31.12.99 23:59:59 11 365",
            ),
        ];
        for (seconds, long, short) in expected {
            let date = Date::new(Some(format!("{seconds}")));
            assert_eq!(formats.map(|format| date.format(format).unwrap()), [long, short]);
            assert_eq!(date.fixed(), Some(&Ok(seconds)));
        }
        assert!(Date::new(None).fixed().is_none());
    }

    #[test]
    fn unknown_directives_long_formats_and_wrong_dates_are_refused() {
        let date = Date::new(Some("0".into()));
        for (format, shown) in [("%Q", "`%Q`"), ("a%", "`%`"), ("%-%", "`%-%`"), ("%-", "`%-`"), ("%Z", "`%Z`")] {
            assert_eq!(date.format(format).unwrap_err(), format!("strftime_now does not know {shown}"));
        }
        let long = "a".repeat(257);
        assert_eq!(date.format(&long).unwrap_err(), "a format of strftime_now has 257 bytes, and may have 256");
        for wrong in ["-1", "today", "253402300800"] {
            let error = Date::new(Some(wrong.into())).format("%Y").unwrap_err();
            let expected =
                format!("the environment variable SOURCE_DATE_EPOCH is `{wrong}` and not a number of seconds");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
