//! Target: the file `network.toml`.

use network::Network;

/// Parses a file. An invalid file must give at least one error. Returns whether it is valid.
pub fn file(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    match Network::parse(text, "network.toml") {
        Ok(_) => true,
        Err(errors) => {
            assert!(!errors.problems().is_empty() || !errors.to_string().is_empty());
            false
        }
    }
}
