//! Validity of names: of hosts, logical switches and ports; of interfaces; of network namespaces.

/// Why `text` cannot name a host, logical switch or port; `None` when it can. Such names need no
/// quoting in command lines, metrics and JSON.
pub(crate) fn object_problem(text: &str) -> Option<String> {
    const MAX_BYTES: usize = 63;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = text.len() <= MAX_BYTES
        && text.bytes().all(allowed)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    (!good).then(|| {
        format!(
            "{text:?} is not a valid name; write 1 to {MAX_BYTES} letters, digits, `-`, `_` and \
             `.`, a letter or \
             digit first"
        )
    })
}

/// Why `text` cannot name an address set or port group; `None` when it can. Matches use it without
/// quotes.
pub(crate) fn set_problem(text: &str) -> Option<String> {
    const MAX_BYTES: usize = 63;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
    let good = text.len() <= MAX_BYTES
        && text.bytes().all(allowed)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    (!good).then(|| {
        format!(
            "{text:?} is not a valid name; write 1 to {MAX_BYTES} letters, digits, `_` and `.`, \
             a letter or `_` first"
        )
    })
}

/// Why `text` cannot name an interface; `None` when it can. The rules are the kernel's (fewer than
/// 16 bytes; no slash, colon or white space; not `.`, `..` or a name that sysctl reserves). In
/// addition `%`, which the kernel replaces, and bytes beyond ASCII are refused.
pub fn interface_problem(text: &str) -> Option<String> {
    const MAX_BYTES: usize = 15;
    let why = if text.is_empty() {
        "it is empty".to_owned()
    } else if text.len() > MAX_BYTES {
        format!("it has {} bytes", text.len())
    } else if matches!(text, "." | ".." | "all" | "default") {
        "the kernel reserves it".to_owned()
    } else {
        let forbidden = |c: &char| !c.is_ascii_graphic() || "/:%".contains(*c);
        let found = text.chars().find(forbidden)?;
        format!("it contains {found:?}")
    };
    Some(format!(
        "{text:?} is not an interface name: {why}; write 1 to {MAX_BYTES} printable ASCII \
         characters other \
         than `/`, `:` and `%`"
    ))
}

/// Why `text` cannot name a network namespace (a file under `/run/netns`); `None` when it can.
pub(crate) fn netns_problem(text: &str) -> Option<String> {
    let bad = matches!(text, "" | "." | "..") || text.len() > 255 || text.contains(['/', '\0']);
    bad.then(|| {
        format!(
            "{text:?} is not the name of a network namespace; write one that `ip netns list` \
                 shows, \
             without its path"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_name_is_refused_when_it_would_need_quoting() {
        for good in ["h1", "web.example", "a-b_c", "9", &"x".repeat(63)] {
            assert_eq!(object_problem(good), None);
        }
        for bad in ["", "-a", ".", "a b", "ü", "a/b", &"x".repeat(64)] {
            assert!(object_problem(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn set_name_is_refused_when_it_is_no_word_of_a_match() {
        for good in ["web", "_a.b", "A9", &"x".repeat(63)] {
            assert_eq!(set_problem(good), None);
        }
        for bad in ["", "9a", "a-b", "a b", "$a", &"x".repeat(64)] {
            assert!(set_problem(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn interface_name_is_refused_when_the_kernel_would() {
        for good in ["eth0", "enp1s0f0np0", "veth-web", "a.100", "abcdefghijklmno"] {
            assert_eq!(interface_problem(good), None);
        }
        for bad in [
            "",
            "abcdefghijklmnop",
            ".",
            "..",
            "a b",
            "a/b",
            "a:b",
            "tap%d",
            "all",
            "default",
            "é",
            "a\0",
        ] {
            assert!(interface_problem(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn netns_name_is_refused_when_it_is_a_path() {
        for good in ["web", "a b", &"x".repeat(255)] {
            assert_eq!(netns_problem(good), None);
        }
        for bad in ["", ".", "..", "/run/netns/web", "a\0", &"x".repeat(256)] {
            assert!(netns_problem(bad).is_some(), "{bad:?}");
        }
    }
}
