//! "Did you mean": suggests the nearest known word.

/// The maximum number of words to compare, so that a file full of errors is refused quickly.
const MAX_CANDIDATES: usize = 256;

/// A suggestion to append to a message about the unknown word `found`: the nearest of `known`, or
/// else all of them. `what` names their kind ("keys").
pub(crate) fn hint<'a>(
    found: &str,
    known: impl Iterator<Item = &'a str> + Clone,
    what: &str,
) -> String {
    match nearest(found, known.clone()) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => match list(known) {
            Some(words) => format!("; known {what}: {words}"),
            None => format!("; there are no {what} here"),
        },
    }
}

/// `a`, `b` and `c`: at most eight words, then the number of the others. `None` for no words.
pub(crate) fn list<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 8;
    let words: Vec<_> = words.map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        [first @ .., last] if words.len() <= SHOWN => {
            Some(format!("{} and {last}", first.join(", ")))
        }
        _ => Some(format!("{} and {} more", words[..SHOWN].join(", "), words.len() - SHOWN)),
    }
}

/// The word of `known` that is nearest to `found`, with at most one edit for every three
/// characters. Words of one or two characters are therefore never suggested.
pub(crate) fn nearest<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = found.to_lowercase();
    let length = lower.chars().count();
    known
        .take(MAX_CANDIDATES)
        .filter_map(|word| {
            let word_length = word.chars().count();
            let limit = word_length.max(length) / 3;
            // The distance is at least the difference of the lengths, which is cheap to compute.
            if word_length.abs_diff(length) > limit {
                return None;
            }
            let edits = strsim::osa_distance(&lower, &word.to_lowercase());
            (edits <= limit).then_some((edits, word))
        })
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_none_when_every_word_is_far() {
        assert_eq!(nearest("colour", ["vni", "mtu"].into_iter()), None);
        assert_eq!(nearest("VNI", ["mtu", "vni"].into_iter()), Some("vni"));
        assert_eq!(nearest("h3", ["h1", "h2"].into_iter()), None);
        assert_eq!(nearest("vin", ["mtu", "vni"].into_iter()), Some("vni"), "swapped neighbours");
    }

    #[test]
    fn nearest_is_quick_when_the_word_is_huge() {
        let huge = "x".repeat(10_000_000);
        assert_eq!(nearest(&huge, ["vni", "mtu"].into_iter()), None);
    }

    #[test]
    fn list_counts_the_rest_when_long() {
        let words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        assert_eq!(list(words.into_iter().take(2)), Some("`a` and `b`".to_owned()));
        assert_eq!(
            list(words.into_iter()),
            Some("`a`, `b`, `c`, `d`, `e`, `f`, `g`, `h` and 2 more".to_owned())
        );
        assert_eq!(list([].into_iter()), None);
    }
}
