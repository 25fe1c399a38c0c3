//! Tests `weft trace` with each type of source (network file, southbound database, ovs-ofctl
//! flows), and with capture files.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use testkit::require_program;

const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const ROUTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/routed.toml");
const SOUTHBOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/southbound.json");
/// A packet from web1 through the router to db1.
const ROUTED_PACKET: &str = r#"inport == "web1"
    && eth.src == 02:00:00:00:01:0a && eth.dst == 02:00:00:00:01:01
    && ip4.src == 10.0.1.10 && ip4.dst == 10.0.2.10 && ip.ttl == 64 && icmp4.type == 8"#;

/// Runs `weft trace`. Returns exit code, standard output and standard error.
fn trace(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(WEFT).arg("trace").args(args).output().expect("weft starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// The output of a trace that must succeed.
fn traced(args: &[&str]) -> String {
    let (code, text, errors) = trace(args);
    assert_eq!((code, errors.as_str()), (0, ""), "{text}");
    text
}

/// Asserts that the text contains these pieces in this order.
fn has(text: &str, pieces: &[&str]) {
    let mut rest = text;
    for piece in pieces {
        match rest.split_once(piece) {
            Some((_, behind)) => rest = behind,
            None => panic!("{piece:?} is not where it should be in\n{text}"),
        }
    }
}

/// A file in the temporary directory, which is removed when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("weft-trace-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("a file can be written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn packet_is_traced_through_switches_and_a_router() {
    let text = traced(&[ROUTED, ROUTED_PACKET]);
    has(
        &text,
        &[
            "ingress(dp=\"web\", inport=\"web1\")",
            "ls_in_l2_lkup (",
            "examples/routed.toml:",
            "ingress(dp=\"core\", inport=\"core-web\")",
            "ip_ttl: 64 -> 63",
            "egress(dp=\"db\"",
            "=> output to \"db1\" (port ",
            "megaflow:  in_port=1,",
            "actions:   ",
        ],
    );
}

#[test]
fn guests_of_other_hosts_are_behind_tunnels() {
    let text = traced(&["--host", "h1", "--summary", ROUTED, ROUTED_PACKET]);
    has(
        &text,
        &[
            "if not longer than 1414 bytes: \
             => tunnel to \"db1\" by end point 1, h2 (geneve, 192.0.2.2)\n",
            "encap(endpoint=1,",
        ],
    );
    assert!(!text.contains("ls_in_"), "{text}");
    let (code, _, errors) = trace(&["--host", "h9", ROUTED, ROUTED_PACKET]);
    assert_eq!((code, errors.contains("no host \"h9\": use one of h1, h2")), (2, true), "{errors}");
}

#[test]
fn copies_of_a_multicast_are_traced_one_by_one() {
    let arp = "inport == \"db1\" && eth.src == 02:00:00:00:02:0a && eth.dst == ff:ff:ff:ff:ff:ff \
               && arp.op == 2";
    let text = traced(&[SOUTHBOUND, arp]);
    has(
        &text,
        &[
            "outport = \"_MC_flood\"",
            "copy for \"db-core\" {",
            "egress(dp=\"db\", inport=\"db1\", outport=\"db-core\")",
            "ingress(dp=\"core\"",
            "}",
        ],
    );
}

#[test]
fn southbound_database_is_traced() {
    let text = traced(&[SOUTHBOUND, ROUTED_PACKET]);
    has(&text, &["lr_in_ip_routing", "(northd.c:", "=> output to \"db1\" (port "]);
    // The same result as that of `ovn-trace --minimal`: the TTL is decremented, and the MAC
    // addresses are those of the router (source) and of db1 (destination).
    has(&text, &["actions:", "eth_dst=02:00:00:00:02:0a", "eth_src=02:00:00:00:02:01"]);
    let spoofed = ROUTED_PACKET.replacen("10.0.1.10", "10.0.1.99", 1);
    has(&traced(&["--minimal", SOUTHBOUND, &spoofed]), &["=> drop", "actions:   drop("]);
}

#[test]
fn trace_as_json_has_steps_and_result() {
    let text = traced(&["--json", ROUTED, ROUTED_PACKET]);
    let object: Value = serde_json::from_str(&text).expect("JSON");
    let steps = object["steps"].as_array().expect("a list");
    assert_eq!((&steps[0]["step"], &steps[0]["datapath"]), (&"pipeline".into(), &"web".into()));
    assert!(object["megaflow"].as_str().is_some_and(|mask| mask.contains("ip4_dst=10.0.2.10")));
    assert_eq!(object["dropped"], Value::Null);
}

#[test]
fn flows_of_ofctl_are_traced_to_devices_and_tunnels() {
    let flows = TempFile::new(
        "flows.txt",
        b"# out and back\n\
          in_port=2,action=set_field:10.222.0.6->tun_dst,output:1\n\
          in_port=1,tun_dst=10.222.0.1 action=output:2\n\
          table=0,priority=1,in_port=3 actions=normal\n",
    );
    let path = flows.path();
    let out = traced(&["--tunnel-port", "1=vx", path, "in_port=2,tcp,tcp_dst=80"]);
    has(&out, &["flows.txt:2): in_port=2", "=> tunnel by end point 1, 10.222.0.6\n"]);
    // Port 1 is not declared as a tunnel port, so it is treated as a device.
    let out = traced(&["--summary", path, "in_port=2,tcp"]);
    has(&out, &["=> output to \"port1\" (port 1)"]);
    let back =
        traced(&["--summary", "--tunnel-port", "1=vx", path, "in_port=vx,tun_dst=10.222.0.1"]);
    has(&back, &["=> output to \"port2\" (port 2)", "megaflow:  "]);
    let other =
        traced(&["--summary", "--tunnel-port", "1=vx", path, "in_port=vx,tun_dst=10.222.0.2"]);
    has(&other, &["=> drop"]);
}

#[test]
fn select_takes_the_requested_member() {
    // In JSON, the quotation marks are escaped.
    let one_hop = "reg8[0..15] = 0; reg0 = ip4.dst; reg1 = 10.0.2.1; eth.src = 02:00:00:00:02:01; \
                   outport = \\\"core-db\\\"; flags.loopback = 1; next;";
    let two_hops = "reg8[0..15] = 1; reg8[16..31] = select(1=1, 2=1);";
    let text = fs::read_to_string(SOUTHBOUND).expect("the dump is there");
    assert!(text.contains(one_hop));
    let dump = TempFile::new("select.json", text.replacen(one_hop, two_hops, 1).as_bytes());
    for (choice, value) in [("0", "0x10001"), ("1", "0x20001"), ("2", "0x10001")] {
        let text = traced(&["--select", choice, dump.path(), ROUTED_PACKET]);
        has(&text, &[&format!("reg8: 0x1 -> {value}\n")]);
    }
}

/// An ICMP echo request from web1 to db1.
const FRAME: &str = "02 00 00 00 01 01 02 00 00 00 01 0a 08 00 45 00 00 1c 00 00 40 00 40 01 23 c7 \
                     0a 00 01 0a 0a 00 02 0a 08 00 f7 fe 00 00 00 01";
/// An ICMP echo request from web1 to web2.
const TO_WEB2: &str = "02 00 00 00 01 0b 02 00 00 00 01 0a 08 00 45 00 00 1c 00 00 40 00 40 01 \
                       24 c6 0a 00 01 0a 0a 00 01 0b 08 00 f7 fe 00 00 00 01";
/// A frame of which only the first half was captured.
const CUT: &str = "02 00 00 00 01 0b 02 00 00 00 01 0a 08 00 45 00 00 1c";

#[test]
fn frame_of_a_capture_file_is_traced() {
    require_program!("text2pcap", "wireshark-common");
    let hex: String =
        [FRAME, TO_WEB2, CUT].iter().map(|frame| format!("000000 {frame}\n")).collect();
    let hex = TempFile::new("frames.hex", hex.as_bytes());
    for format in ["pcap", "pcapng"] {
        let capture = TempFile::new(&format!("frames.{format}"), b"");
        let made = Command::new("text2pcap")
            .args(["-q", "-F", format, hex.path(), capture.path()])
            .output()
            .expect("text2pcap starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let frame = |number: &str, inport: &str| {
            trace(&[
                "--summary",
                ROUTED,
                "--pcap",
                capture.path(),
                "--frame",
                number,
                "--inport",
                inport,
            ])
        };
        let (code, text, _) = frame("1", "web1");
        assert_eq!(code, 0);
        has(&text, &["ip4_dst=10.0.2.10", "=> output to \"db1\""]);
        has(&frame("2", "web1").1, &["=> output to \"web2\""]);
        for (number, inport, expected) in [
            ("3", "web1", "malformed, and the switch would drop it: IPv4"),
            ("4", "web1", "no frame 4: the file has 3 frames"),
            ("1", "web3", "unknown ingress port `web3`; did you mean `web1`?"),
            ("1", "1", "unknown ingress port `1`"),
        ] {
            let (code, _, errors) = frame(number, inport);
            assert_eq!((code, errors.contains(expected)), (2, true), "{errors}");
        }
    }
}

#[test]
fn input_errors_have_their_position() {
    let flows = TempFile::new("bad.txt", b"tcp_dst=1,actions=drop\nactions=drop\nactions=fly\n");
    let not_a_capture = TempFile::new("not.pcap", b"GET / HTTP/1.1\r\n\r\n");
    let table: &[(&[&str], &str)] = &[
        (
            &[ROUTED, "inport == \"wbe1\""],
            "weft: packet, column 11: Unknown ingress port `wbe1`; did you mean `web1`?\n    \
             inport == \"wbe1\"\n              ^~~~~~\n",
        ),
        (&[ROUTED, "inport == \"web1\" && eth.dst = 1"], "column 29: Syntax error at `='"),
        (&[ROUTED, "eth.dst == 1"], "The packet needs one logical ingress port"),
        (&[ROUTED, "inport == \"web1\" && ip4.src > 7"], "ambiguous"),
        (&[flows.path(), "in_port=1"], "bad.txt:1:1: `tcp_dst` needs"),
        (&[flows.path(), "in_port=1"], "bad.txt:3:9: unknown action or port `fly`"),
        (&["--format", "southbound", ROUTED, "1"], "not a dump of a database"),
        (&[ROUTED, "--pcap", not_a_capture.path(), "--inport", "web1"], "not a capture file"),
        (&[ROUTED], "required"),
        (&["--port", "x=1", ROUTED, "1"], "invalid port number `x`"),
        (&["--port", "1=x", ROUTED, "1"], "apply to ovs-ofctl flows only"),
        (&["--host", "h1", SOUTHBOUND, "1"], "--host applies to network files only"),
        (&["/nonexistent", "1"], "cannot read /nonexistent"),
    ];
    for (args, expected) in table {
        let (code, text, errors) = trace(args);
        assert_eq!((code, text.as_str()), (2, ""), "{args:?}");
        assert!(errors.contains(expected), "{args:?}: {errors}");
    }
}

/// A row that cannot be executed would make the trace wrong. So no trace is printed, and all such
/// rows are reported.
#[test]
fn all_errors_of_a_database_are_reported_together() {
    let text = fs::read_to_string(SOUTHBOUND).expect("the database");
    let mcast = text.matches("\"eth.mcast\"").count();
    assert!(mcast > 1 && text.contains("\"drop;\""));
    let text = text.replace("\"eth.mcast\"", "\"eth.mcats\"").replacen("\"drop;\"", "\"fall;\"", 1);
    let file = TempFile::new("faults.json", text.as_bytes());
    let (code, out, errors) = trace(&[file.path(), ROUTED_PACKET]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    let faults: Vec<_> = errors.lines().filter(|line| line.contains("faults.json: ")).collect();
    assert_eq!(faults.len(), mcast + 1, "{errors}");
    assert!(faults.iter().all(|fault| fault.contains("northd.c:")), "{errors}");
    assert!(errors.contains("match, column 1") && errors.contains("actions, column 1"), "{errors}");
}
