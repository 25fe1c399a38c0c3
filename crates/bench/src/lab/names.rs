//! The names of the namespaces and directories of a lab, from which their session can be told.

/// Namespaces and directories of a lab are called `weft-<pid of the session>-<host, guest or number>`.
const PREFIX: &str = "weft-";
/// The beginning of the names of this process's namespaces.
pub(super) fn prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// The process that a namespace or directory called `name` belongs to, if it is one of a lab.
pub(super) fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix(PREFIX)?.split_once('-')?;
    if rest.is_empty() { None } else { pid.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_found_when_the_name_is_of_a_lab() {
        assert_eq!(owner("weft-123-h1"), Some(123));
        assert_eq!(owner("weft-123-h1g2"), Some(123));
        for other in ["weft-123", "weft-123-", "weft-x-h1", "weft--h1", "123-h1", "blue"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
