//! Timestamps.

use jiff::Timestamp;
use std::fmt;
use std::time::{Duration, SystemTime};

/// Time since 1970-01-01 UTC; 0 for earlier times.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A time in UTC, formatted as in RFC 3339: `2026-11-21T18:40:00.123456Z`.
pub struct Utc(pub SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Fails only for years after 9999.
        let timestamp = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        write!(f, "{timestamp:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        let table = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_763_750_400, "2025-11-21T18:40:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ];
        for (seconds, text) in table {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Utc(time).to_string(), text);
        }
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_891);
        assert_eq!(Utc(time).to_string(), "1970-01-01T00:00:01.234567Z");
    }
}
