//! Numbers as people read them, in few characters.

/// Returns a number with three digits and a decimal suffix: `0`, `999`, `1.23k`, `45.6M`.
pub(super) fn short(number: f64) -> String {
    const SUFFIXES: [&str; 5] = ["k", "M", "G", "T", "P"];
    if !number.is_finite() || number < 0.05 {
        return "0".to_owned();
    }
    if number < 9.95 {
        let text = format!("{number:.1}");
        return text.strip_suffix(".0").map(str::to_owned).unwrap_or(text);
    }
    if number < 999.5 {
        return format!("{number:.0}");
    }
    let mut number = number;
    let mut suffix = "";
    for next in SUFFIXES {
        number /= 1000.0;
        suffix = next;
        if number < 999.5 {
            break;
        }
    }
    match number {
        ..9.995 => format!("{number:.2}{suffix}"),
        9.995..99.95 => format!("{number:.1}{suffix}"),
        _ => format!("{number:.0}{suffix}"),
    }
}

/// Returns a rate of bytes per second in bits per second.
pub(super) fn bits(bytes_per_second: f64) -> String {
    short(bytes_per_second * 8.0)
}

/// Returns a short time, given in microseconds: `85us`, `1.2ms`, `3.4s`.
pub(super) fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..10_000 => format!("{:.1}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{}ms", us / 1_000),
        1_000_000..100_000_000 => format!("{:.1}s", us as f64 / 1e6),
        _ => age(us),
    }
}

/// Returns a long time, given in microseconds, in its two largest units: `7s`, `3m20s`, `5h02m`,
/// `12d04h`.
pub(super) fn age(us: u64) -> String {
    let seconds = us / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Returns a part of a whole in percent; `-` of nothing.
pub(super) fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.0}%", 100.0 * part / whole) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (-3.0, "0"),
            (f64::NAN, "0"),
            (f64::INFINITY, "0"),
            (0.04, "0"),
            (0.5, "0.5"),
            (7.0, "7"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1234.0, "1.23k"),
            (9996.0, "10.0k"),
            (45_600.0, "45.6k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (8e10, "80.0G"),
            (u64::MAX as f64, "18447P"),
        ] {
            assert_eq!(short(number), text, "{number}");
        }
        assert_eq!(bits(125_000.0), "1.00M");
    }

    #[test]
    fn times_are_short() {
        for (us, text) in [
            (0, "0us"),
            (999, "999us"),
            (1_250, "1.2ms"),
            (45_900, "45ms"),
            (1_500_000, "1.5s"),
            (200_000_000, "3m20s"),
        ] {
            assert_eq!(micros(us), text);
        }
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (61, "1m01s"), (3_720, "1h02m"), (1_051_200, "12d04h")]
        {
            assert_eq!(age(seconds * 1_000_000), text);
        }
        assert!(age(u64::MAX).ends_with('h'));
        assert_eq!((percent(1.0, 3.0), percent(0.0, 0.0)), ("33%".to_owned(), "-".to_owned()));
    }
}
