//! The control socket of a daemon.

use cli::fuzzing::parse_request;

/// Parses a request. Written again, it must be the same one. Returns whether only trusted clients
/// may send it; `None` if it is invalid.
pub fn request(bytes: &[u8]) -> Option<bool> {
    let request = parse_request(bytes, u64::MAX).ok()?;
    let text = serde_json::to_vec(&request).expect("a request can be written");
    let again = parse_request(&text, u64::MAX).expect("a written request is valid");
    assert_eq!(again, request);
    Some(!request.is_view())
}
