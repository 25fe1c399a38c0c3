//! The names of a lab's namespaces and directories, which contain the process of the session, and
//! the number of the uplink in OpenFlow.

/// The OpenFlow port number of the uplink where it is a port of the guests' bridge.
pub(super) const UPLINK_PORT: u16 = 1000;

/// The names are `weft-<pid>-<host, guest or number>`.
const PREFIX: &str = "weft-";
/// The prefix of the names that this process uses.
pub(super) fn prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// The identifier of the process that owns a namespace or directory called `name`, if that belongs
/// to a lab.
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
