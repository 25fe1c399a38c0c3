//! Tests every error that the checks report, with its exact text.
//!
//! The cases are in `refused/*.txt`: a title after `==`, a network file, `=>`, and *all* messages
//! about it, so that consequential errors would show. `@hosts` stands for two hosts, and `@ports`
//! for a port on each of them. Each expands to one line, so that line numbers stay.

use network::Network;

const HOSTS: &str = concat!(
    r#"host = [{ name = "h1", uplink = "eth0", underlay = ["192.0.2.1"] }, "#,
    r#"{ name = "h2", uplink = "eth0", underlay = ["192.0.2.2"] }]"#
);

const PORTS: &str = concat!(
    r#"port = [{ name = "a", host = "h1", mac = "02:00:00:00:00:01", device = { tap = "a0" } }, "#,
    r#"{ name = "b", host = "h2", mac = "02:00:00:00:00:02", device = { tap = "b0" } }]"#
);

fn complaints(text: &str) -> String {
    match Network::parse(text, "net.toml") {
        Ok(network) => format!("accepted: {network:#?}"),
        Err(errors) => errors.to_string(),
    }
}

/// Compares the `count` cases of a file.
fn check(cases: &str, count: usize) {
    let cases = format!("\n{cases}");
    let cases: Vec<_> = cases.split("\n== ").skip(1).collect();
    assert_eq!(cases.len(), count);
    for case in cases {
        let (title, case) = case.split_once('\n').expect("a title");
        let (text, expected) = case.split_once("=>\n").expect("a `=>`");
        let text = text.replace("@hosts", HOSTS).replace("@ports", PORTS);
        assert_eq!(complaints(&text), expected.trim_end(), "case: {title}");
    }
}

#[test]
fn file_is_refused_when_it_is_no_network() {
    check(include_str!("refused/file.txt"), 13);
}

#[test]
fn keys_are_refused_when_unknown_missing_or_of_the_wrong_type() {
    check(include_str!("refused/keys.txt"), 23);
}

#[test]
fn pools_are_refused_when_a_port_of_them_would_be_invalid() {
    check(include_str!("refused/pools.txt"), 6);
}

#[test]
fn hosts_are_refused_when_they_cannot_be_told_apart_or_reached() {
    check(include_str!("refused/hosts.txt"), 12);
}

#[test]
fn tunnels_are_refused_when_unknown_or_options_are_out_of_range() {
    check(include_str!("refused/tunnels.txt"), 7);
}

#[test]
fn segments_are_refused_when_out_of_range_missing_or_taken() {
    check(include_str!("refused/segments.txt"), 9);
}

#[test]
fn mtus_are_refused_when_packets_cannot_fit() {
    check(include_str!("refused/mtu.txt"), 13);
}

#[test]
fn ports_are_refused_when_invalid_or_taken() {
    check(include_str!("refused/ports.txt"), 13);
}

#[test]
fn bridges_are_refused_when_their_names_numbers_or_devices_are_taken() {
    check(include_str!("refused/bridges.txt"), 2);
}

#[test]
fn routers_are_refused_when_their_ports_or_routes_are_invalid() {
    check(include_str!("refused/routers.txt"), 8);
}

#[test]
fn policy_is_refused_when_invalid_or_about_unknown_names() {
    check(include_str!("refused/policy.txt"), 6);
}

#[test]
fn services_are_refused_when_they_cannot_work() {
    check(include_str!("refused/services.txt"), 5);
}

#[test]
fn ports_are_refused_when_there_are_more_than_keys() {
    let port = |number: u32| {
        let [_, _, high, low] = number.to_be_bytes();
        format!(
            "{{ name = \"p{number}\", host = \"h1\", mac = \"02:00:00:00:{high:02x}:{low:02x}\", \
             device = {{ tap = \"p{number}\" }} }},\n"
        )
    };
    let ports: String = (1..=32_768).map(port).collect();
    let switch = "[[logical_switch]]\nname = \"blue\"\ntunnel = \"vxlan\"\nvni = 1";
    assert_eq!(
        complaints(&format!("{HOSTS}\n{switch}\nport = [\n{ports}]")),
        "net.toml:32774:1: a logical switch has at most 32767 ports, this one has 32768; \
         move ports to another switch"
    );
}

#[test]
fn file_is_refused_when_it_is_missing_empty_or_not_text() {
    let dir = std::env::temp_dir().join(format!("weft-network-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let load = |content: Option<&[u8]>| {
        let path = dir.join("net.toml");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let errors = Network::load(&path).unwrap_err();
        assert_eq!(errors.file(), path.display().to_string());
        errors.to_string().replace(&format!("{}/", dir.display()), "")
    };
    let complaints = [
        load(None),
        load(Some(b"")),
        load(Some(b"tunnel = \"\xc3\xa4\"\n# caf\xe9\n")),
        load(Some(b"\xff\xfet\0")),
    ];
    let directory = Network::load(&dir).unwrap_err().to_string();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(
        complaints,
        [
            "net.toml: cannot read the file: No such file or directory (os error 2)",
            "net.toml: the file is empty; a network needs at least one [[host]]",
            "net.toml:2:6: byte 0xe9 is not UTF-8; save the file as UTF-8",
            "net.toml:1:1: byte 0xff is not UTF-8; save the file as UTF-8",
        ]
    );
    assert!(
        directory.ends_with(": cannot read the file: it is a directory, not a regular file"),
        "{directory}"
    );
}
