//! Tests of `weft check`, and of `weft flows` for network files.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const ROUTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/routed.toml");
const OVN_LIST: &str = include_str!("data/lflow-list.txt");

/// Runs weft with `input` on standard input. Returns exit code, standard output and standard error.
fn weft(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(WEFT)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let mut stdin = child.stdin.take().expect("there is a pipe");
    // A separate thread writes, because writing to a full pipe blocks.
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("weft ends");
    // This fails if the program exits without reading, for example because of wrong arguments.
    let _ = writer.join().expect("the writer does not panic");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

#[test]
fn lines_are_printed_in_canonical_form() {
    let table = [
        (
            "--expr",
            "# a comment\n\nip4.dst==10.0.0.0/8&&tcp.dst<1024\n",
            "# a comment\n\nip4.dst[24..31] == 0xa && tcp.dst < 0x400\n",
        ),
        (
            "--actions",
            "ip.ttl--;outport=\"lan\";output;\n",
            "ip.ttl--; outport = \"lan\"; output;\n",
        ),
        (
            "--ofctl",
            "in_port=2 action=set_field:10.222.0.6->tun_dst,output:1\n",
            "table=0,priority=32768,in_port=2 actions=set_field:10.222.0.6->tun_dst,output:1\n",
        ),
    ];
    for (language, input, canonical) in table {
        let printed = (0, canonical.to_owned(), String::new());
        assert_eq!(weft(&["check", language, "-"], input), printed);
        assert_eq!(weft(&["check", language, "-"], canonical), printed);
    }
}

#[test]
fn errors_point_at_their_position() {
    let table = [
        (
            "--expr",
            "1\nip4.dst = 10.0.0.1\n",
            &[
                "standard input:2:9: Syntax error at `=' expecting relational operator.",
                "    ip4.dst = 10.0.0.1",
                "            ^",
                "weft: 1 of 2 lines are invalid: see the messages above",
            ],
        ),
        (
            "--actions",
            "\tnxt;",
            &[
                "standard input:1:2: Syntax error at `nxt' expecting action.",
                "     nxt;",
                "     ^~~",
                "weft: 1 of 1 lines are invalid: see the messages above",
            ],
        ),
        (
            "--ofctl",
            "tcp_dst=80,actions=drop",
            &[
                "standard input:1:1: `tcp_dst` needs `tcp` or `tcp6` in the match",
                "    tcp_dst=80,actions=drop",
                "    ^",
                "weft: 1 of 1 lines are invalid: see the messages above",
            ],
        ),
        (
            "--flows",
            "table=0, priority=1, match=(1), action=(next",
            &[
                "standard input:1:45: Expecting `)'.",
                "    table=0, priority=1, match=(1), action=(next",
                "                                                ^",
                "weft: 1 of 1 lines are invalid: see the messages above",
            ],
        ),
    ];
    for (language, input, expected) in table {
        let (code, _, errors) = weft(&["check", language, "-"], input);
        assert_eq!((code, errors.lines().collect::<Vec<_>>()), (1, expected.to_vec()), "{input}");
    }
}

#[test]
fn json_has_an_object_for_each_line() {
    let (code, out, _) = weft(&["check", "--expr", "--json", "-"], "# x\nip4 \n\ntcp &&\n");
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let message = "Syntax error at end of input expecting constant.";
    assert_eq!(code, 1);
    assert_eq!(
        objects,
        [
            json!({ "line": 2, "canonical": "ip4" }),
            json!({ "line": 4, "error": { "line": 4, "column": 7, "message": message } }),
        ]
    );
}

#[test]
fn unreadable_file_is_an_input_error() {
    let (code, _, errors) = weft(&["check", "--expr", "/nonexistent"], "");
    assert_eq!(
        (code, errors.starts_with("weft: cannot read /nonexistent: ")),
        (2, true),
        "{errors}"
    );
    for args in [&["check", "-"][..], &["check", "--expr", "--ofctl", "-"]] {
        assert_eq!(weft(args, "").0, 2);
    }
}

#[test]
fn pipe_is_an_input_error_when_it_is_not_standard_input() {
    let pipe = std::env::temp_dir().join(format!("weft-check-{}", std::process::id()));
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe can be made");
    let path = pipe.to_str().expect("a path of ASCII");
    let cases: [&[&str]; 4] = [
        &["check", "--expr", path],
        &["flows", "--logical", path],
        &["trace", path, "in_port=1"],
        &["trace", "--format", "ofctl", "-", "--pcap", path, "--inport", "1"],
    ];
    let results = cases.map(|args| weft(args, "in_port=1 actions=drop\n"));
    std::fs::remove_file(&pipe).expect("the pipe can be removed");
    for (args, (code, out, stderr)) in cases.into_iter().zip(results) {
        assert!(stderr.contains("it is a pipe (FIFO), not a regular file"), "{args:?}: {stderr}");
        assert_eq!((code, &*out), (2, ""), "{args:?}: {stderr}");
    }
}

/// The flows of ovn-northd are valid, and so is their canonical form.
#[test]
fn flow_list_of_ovn_survives_a_second_check() {
    let (code, canonical, errors) = weft(&["check", "--flows", "-"], OVN_LIST);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(canonical.lines().count(), OVN_LIST.lines().count());
    assert!(canonical.lines().next().is_some_and(|line| line.starts_with("Datapath: \"core\"")));
    assert_eq!(weft(&["check", "--flows", "-"], &canonical).1, canonical);
}

#[test]
fn flows_of_a_network_file_are_valid() {
    let (code, list, _) = weft(&["flows", "--logical", ROUTED], "");
    assert_eq!(code, 0);
    let (code, canonical, errors) = weft(&["check", "--flows", "-"], &list);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(canonical.lines().count(), list.lines().count());
    let headers = list.lines().filter(|line| line.starts_with("Datapath:")).count();
    // The network has three switches and two routers, each with an ingress and an egress pipeline.
    assert_eq!(headers, 10);
}

#[test]
fn flows_of_one_datapath_are_listed_by_name_and_as_json() {
    let (code, list, _) = weft(&["flows", "--logical", ROUTED, "--datapath", "db"], "");
    assert_eq!(code, 0);
    assert!(list.starts_with("Datapath: \"db\""), "{list}");
    assert!(list.contains("outport = \"db1\"; output;") && !list.contains("\"web1\"; output"));
    let (code, text, _) = weft(&["flows", "--logical", ROUTED, "--datapath", "db", "--json"], "");
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 0);
    assert_eq!(object["datapaths"][0]["name"], "db");
    // The DHCP guard in an earlier stage also matches UDP, so flows are selected by stage.
    let is_acl = |flow: &&Value| {
        let matches_udp = flow["match"].as_str().is_some_and(|it| it.contains("udp"));
        flow["stage"] == "ls_in_acl" && matches_udp
    };
    let acl = object["flows"].as_array().unwrap().iter().find(is_acl);
    let acl = acl.expect("the access control list is there");
    assert_eq!(acl["pipeline"], "ingress");
    assert!(acl["line"].as_u64().is_some());

    let (code, _, errors) = weft(&["flows", "--logical", ROUTED, "--datapath", "dbx"], "");
    assert_eq!(code, 2);
    assert!(
        errors.contains("no logical switch or router `dbx`: use one of `web`, `db`"),
        "{errors}"
    );
}

/// Validates files with a general JSON Schema validator, which detects errors of the schema's
/// generator.
#[test]
fn json_schema_accepts_the_examples_and_refuses_wrong_files() {
    testkit::require_program!("python3", "python3-jsonschema");
    // One process validates all files, because importing jsonschema takes longer than the
    // validation.
    const SCRIPT: &str = "
import json, jsonschema, sys, tomllib
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
for file in json.load(sys.stdin):
    errors = validator.iter_errors(tomllib.loads(file))
    print(json.dumps([f'{error.json_path} {error.message}' for error in errors]))
";
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let schema = format!("{root}/docs/network.schema.json");
    let examples = std::fs::read_dir(format!("{root}/examples")).expect("the examples");
    let examples = examples.map(|entry| entry.expect("an entry").path());
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    let examples: Vec<_> = examples.filter(is_toml).collect();
    assert!(examples.len() > 8, "{} examples found", examples.len());
    let routed = std::fs::read_to_string(ROUTED).expect("an example");
    let cases = [
        ("uplink = ", "uplinks = ", "'uplinks' was unexpected"),
        ("underlay_mtu = 1500", "underlay_mtu = \"1500\"", "'1500' is not of type 'integer'"),
        ("[[logical_router]]", "[[logical_routers]]", "'logical_routers' was unexpected"),
        ("underlay_mtu = 1500", "underlay_mtu = 500", "500 is less than the minimum of 576"),
        ("uplink = \"eth0\"", "", "'uplink' is a required property"),
        ("tunnel = \"geneve\"", "tunnel = \"genive\"", "'genive' is not one of "),
        ("device = { ", "device = { interface = \"x\", ", "is valid under each of"),
        ("device = { tap = ", "device = { queues = 2, tap = ", "'vm' is a dependency of 'queues'"),
    ];
    let mut files: Vec<_> =
        examples.iter().map(|path| std::fs::read_to_string(path).expect("a file")).collect();
    for (right, wrong, _) in cases {
        assert!(routed.contains(right), "{right}");
        files.push(routed.replace(right, wrong));
    }
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", SCRIPT, &schema]);
    let output = testkit::program::run(python, json!(files).to_string().as_bytes());
    let faults: Vec<Vec<String>> =
        output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(faults.len(), files.len());
    let (of_examples, of_cases) = faults.split_at(examples.len());
    for (path, faults) in examples.iter().zip(of_examples) {
        assert!(faults.is_empty(), "{}: {faults:?}", path.display());
    }
    for ((_, wrong, fault), stderr) in cases.into_iter().zip(of_cases) {
        assert!(stderr.iter().any(|line| line.contains(fault)), "{wrong}: {stderr:?}");
    }
}
