//! "Did you mean": the known name that is nearest to an unknown one.

/// Longer names get no suggestion, which bounds the time of the comparison.
const MAX_COMPARED_BYTES: usize = 40;

/// The end of an error message about an unknown name: `; did you mean ...?` with the nearest of
/// `known`, or nothing when none is near. Upper and lower case count as equal.
pub fn suggestion<'n>(unknown: &str, known: impl Iterator<Item = &'n str>) -> String {
    if unknown.len() > MAX_COMPARED_BYTES {
        return String::new();
    }
    let max_edits = if unknown.len() < 4 { 1 } else { 2 };
    let lower = unknown.to_ascii_lowercase();
    known
        .map(|name| (strsim::osa_distance(&lower, &name.to_ascii_lowercase()), name))
        .filter(|&(edits, _)| edits <= max_edits)
        .min()
        .map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_suggested_when_few_letters_differ() {
        let known = || ["tp_dst", "tp_src", "nw_src", "ip"].into_iter();
        for (unknown, expected) in [
            ("tp_dts", "; did you mean `tp_dst`?"),
            ("NW_SRC", "; did you mean `nw_src`?"),
            ("i", "; did you mean `ip`?"),
            ("priority", ""),
            (&"x".repeat(100_000), ""),
        ] {
            assert_eq!(suggestion(unknown, known()), expected);
        }
    }
}
