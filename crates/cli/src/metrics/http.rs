//! The subset of HTTP/1.1 that a scrape needs: one request without a body and one response on each
//! connection (RFC 9110, RFC 9112).

use super::exposition::Format;

/// The maximum length of a request in bytes. The head of a Prometheus scrape has about 300.
pub const MAX_REQUEST_BYTES: usize = 8 * 1024;

/// The reason why a request gets an error response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request is not valid HTTP.
    Malformed,
    /// The request is for a path other than `/metrics`.
    NotFound,
    /// The method is not GET.
    Method,
    /// The client took too long.
    Timeout,
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    TooLong,
    /// An HTTP version other than 1.0 and 1.1.
    Version,
    /// Too many clients are connected, or the datapath does not reply.
    Busy,
}

impl Refusal {
    /// The status line's code and reason, and a sentence for people.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Malformed => ("400 Bad Request", "this is no HTTP request\n"),
            Self::NotFound => ("404 Not Found", "metrics are at /metrics\n"),
            Self::Method => ("405 Method Not Allowed", "metrics can only be read, by GET\n"),
            Self::Timeout => ("408 Request Timeout", "the request took too long\n"),
            Self::TooLong => {
                ("431 Request Header Fields Too Large", "the request is longer than 8 KiB\n")
            }
            Self::Version => ("505 HTTP Version Not Supported", "use HTTP/1.1\n"),
            Self::Busy => ("503 Service Unavailable", "the daemon is busy: try again later\n"),
        }
    }

    /// The complete response.
    pub fn response(self) -> Vec<u8> {
        let (status, text) = self.texts();
        let allow = if self == Self::Method { "Allow: GET\r\n" } else { "" };
        let kind = "text/plain; charset=utf-8";
        response(status, kind, allow, text.as_bytes())
    }
}

/// The response with metrics.
pub fn metrics(format: Format, body: &str) -> Vec<u8> {
    response("200 OK", format.content_type(), "", body.as_bytes())
}

fn response(status: &str, kind: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}\
         Connection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The length of the request head in `bytes`, including the empty line after it; `None` if that
/// line is missing.
pub fn head_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    end.map(|end| end + 4)
}

/// Reads the head of a request, and chooses a format for the response.
///
/// # Errors
/// [`Refusal`] when this is not a valid request for metrics.
pub fn parse(head: &[u8]) -> Result<Format, Refusal> {
    let text = str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    match version {
        "HTTP/1.0" | "HTTP/1.1" => {}
        other if other.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::Malformed),
    }
    if target.split('?').next() != Some("/metrics") {
        return Err(Refusal::NotFound);
    }
    if method != "GET" {
        return Err(Refusal::Method);
    }
    let mut accepted = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        if name.eq_ignore_ascii_case("accept") {
            accepted.extend(value.split(','));
        }
    }
    Ok(choose(&accepted))
}

/// The format that a client prefers, from the media ranges of its `Accept` (RFC 9110, section
/// 12.5.1). A client that accepts neither format gets that of Prometheus.
fn choose(accepted: &[&str]) -> Format {
    let best = |kind: &str| {
        let weights = accepted.iter().filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(kind));
            let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
            named.then(|| weight.unwrap_or(1.0_f32))
        });
        weights.fold(0.0, f32::max)
    };
    let open_metrics = best("application/openmetrics-text");
    if open_metrics > 0.0 && open_metrics >= best("text/plain") {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(head: &str) -> Result<Format, Refusal> {
        parse(format!("{head}\r\n\r\n").as_bytes())
    }

    #[test]
    fn format_is_chosen_by_the_weights_that_the_client_gives() {
        // The header of Prometheus 2.42.
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,\
            */*;q=0.1";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("*/*", Format::Prometheus),
            ("text/plain", Format::Prometheus),
            ("text/plain;q=0.9, application/openmetrics-text; q=0.5", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text;q=nan, text/html", Format::Prometheus),
            ("APPLICATION/OPENMETRICS-TEXT", Format::OpenMetrics),
            (",,;;q=,", Format::Prometheus),
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\naCCept: {accept}");
            assert_eq!(get(&head), Ok(format), "{accept}");
        }
        assert_eq!(get("GET /metrics HTTP/1.1"), Ok(Format::Prometheus));
        assert_eq!(get("GET /metrics?name=x HTTP/1.0"), Ok(Format::Prometheus));
    }

    #[test]
    fn requests_for_anything_else_are_refused_with_a_reason() {
        for (head, refusal) in [
            ("", Refusal::Malformed),
            ("GET", Refusal::Malformed),
            ("GET /metrics", Refusal::Malformed),
            ("GET  /metrics HTTP/1.1", Refusal::Malformed),
            ("GET /metrics HTTP/1.1 x", Refusal::Malformed),
            ("GET /metrics SPDY/3", Refusal::Malformed),
            ("GET /metrics HTTP/1.1\r\nno colon", Refusal::Malformed),
            ("GET /metrics HTTP/2.0", Refusal::Version),
            ("GET / HTTP/1.1", Refusal::NotFound),
            ("GET /metricsx HTTP/1.1", Refusal::NotFound),
            ("GET http://x/metrics HTTP/1.1", Refusal::NotFound),
            ("POST /metrics HTTP/1.1", Refusal::Method),
            ("get /metrics HTTP/1.1", Refusal::Method),
        ] {
            assert_eq!(get(head), Err(refusal), "{head:?}");
        }
        assert_eq!(parse(b"GET /metrics\xff HTTP/1.1\r\n\r\n"), Err(Refusal::Malformed));
        assert_eq!(parse(&[0; 64]), Err(Refusal::Malformed));
    }

    #[test]
    fn responses_have_the_length_of_their_body() {
        let text = String::from_utf8(Refusal::Method.response()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\nAllow: GET\r\n"), "{head}");
        assert_eq!(head_len(b"GET / HTTP/1.1\r\n\r\nmore"), Some(18));
        assert_eq!(head_len(b"GET / HTTP/1.1\r\n\n"), None);
    }
}
