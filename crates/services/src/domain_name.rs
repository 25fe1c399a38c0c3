//! The encoding of domain names in options and messages (RFC 1035 section 3.1).

/// The longest name, in encoded bytes (RFC 1035 section 3.1).
const MAX_NAME: usize = 255;
/// The longest label, in bytes.
const MAX_LABEL: usize = 63;

/// The error for a text that is not a domain name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no domain name: it has an empty label, one over 63 bytes, or over 253 bytes in all"
)]
pub struct BadDomainName(pub String);

/// Appends a name to `out`, without compression. A dot at the end is allowed.
///
/// # Errors
/// [`BadDomainName`]; `out` is then unchanged.
pub(crate) fn encode(name: &str, out: &mut Vec<u8>) -> Result<(), BadDomainName> {
    let start = out.len();
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        match u8::try_from(label.len()) {
            Ok(len) if len != 0 && label.len() <= MAX_LABEL => out.push(len),
            _ => {
                out.truncate(start);
                return Err(BadDomainName(name.to_owned()));
            }
        }
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    if out.len() - start > MAX_NAME {
        out.truncate(start);
        return Err(BadDomainName(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_encoded_when_its_labels_fit() {
        let encoded = |name: &str| {
            let mut out = vec![7];
            let done = encode(name, &mut out);
            assert_eq!(done.is_err(), out == [7], "{name}");
            done.ok().map(|()| out.split_off(1))
        };
        assert_eq!(encoded("a.example").unwrap(), b"\x01a\x07example\0");
        assert_eq!(encoded("a.example."), encoded("a.example"));
        let (long, longer) = ("x".repeat(63), "x".repeat(64));
        assert!(encoded(&long).is_some());
        for bad in ["", ".", "a..b", ".a", &longer, &[&*long; 4].join(".")] {
            assert_eq!(encoded(bad), None, "{bad}");
        }
    }
}
