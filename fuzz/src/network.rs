//! `network.toml`.

use network::Network;

/// Reads a file; true when it was valid. A refusal says at least one thing that is wrong.
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
