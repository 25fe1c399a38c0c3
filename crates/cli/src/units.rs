//! Human-readable numbers: three digits and a unit prefix.

/// A number with a prefix, such as `1.23k`, `45.6M` or `789`. A whole number below 1000 has no
/// decimals.
pub fn scaled(value: f64) -> String {
    const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    // Also replaces -0 by 0.
    let mut value = if value.is_finite() && value > 0.0 { value } else { 0.0 };
    let mut prefixes = PREFIXES.into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    // A value that would be rounded up to 1000 takes the next prefix.
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let decimals = match value {
        _ if prefix.is_empty() && (value.fract() == 0.0 || value >= 99.95) => 0,
        _ if value < 9.995 => 2,
        _ if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{prefix}")
}

/// As [`scaled`], for a counter.
pub fn scaled_count(value: u64) -> String {
    scaled(value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        for (value, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (99.97, "100"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1000.0, "1.00k"),
            (9_996.0, "10.0k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (1.5e9, "1.50G"),
            (2e21, "2000E"),
            (f64::NAN, "0"),
            (f64::INFINITY, "0"),
            (-3.0, "0"),
            (-0.0, "0"),
        ] {
            assert_eq!(scaled(value), text, "{value}");
        }
    }
}
