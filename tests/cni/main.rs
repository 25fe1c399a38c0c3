//! End-to-end tests of `weft-cni`, as one test program.
//!
//! They start `weft-cni` and the program `weft` in the same directory. `cargo test -p cni` builds
//! only `weft-cni`: run `cargo build -p weft` first.

mod cnitool;
mod lab;

use lab::{DEBIAN_PLUGINS, Lab, Pod, address};
use serde_json::{Value, json};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use testkit::random::Random;

/// The program under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_weft-cni");

#[test]
fn pods_of_two_hosts_obey_the_policy_when_they_are_in_pools() {
    testkit::require_root!();
    thread::scope(|scope| {
        for datapath in ["user", "kernel"] {
            scope.spawn(move || policy(datapath));
        }
    });
}

fn policy(datapath: &'static str) {
    let lab = Lab::new(datapath);
    let [web, client, other] = [(); 3].map(|()| Pod::new());
    let web_result = lab.add(0, (&web, "eth0"), &lab.config(0, "web"));
    lab.add(1, (&client, "eth0"), &lab.config(1, "clients"));
    let other_result = lab.add(1, (&other, "eth0"), &lab.config(1, "others"));
    let (web4, web6) = (address(&web_result, 0), address(&web_result, 1));
    assert!(client.reaches(web4), "{datapath}: a client reaches {web4}");
    assert!(client.reaches(web6), "{datapath}: a client reaches {web6}");
    assert!(client.reaches("10.88.255.1"), "{datapath}: the router answers");
    assert!(client.reaches(address(&other_result, 0)));
    assert!(!other.reaches(web4), "{datapath}: the policy drops others");

    // Adds a second interface in another network, on both hosts.
    let storage = lab.config(0, "storage");
    let first = lab.add(0, (&web, "net1"), &storage);
    let second = lab.add(1, (&client, "net1"), &lab.config(1, "storage"));
    assert!(client.reaches(address(&first, 0)), "{datapath}: {first}");
    assert!(web.reaches(address(&second, 0)), "{datapath}: {second}");
    let taken = lab.cni(0, "ADD", (&web, "net1"), &storage).unwrap_err();
    assert_eq!(taken["code"], 4, "{taken}");

    // CHECK compares the state of the namespace and of the daemon with the result of ADD.
    let mut config = lab.config(0, "web");
    config["prevResult"] = web_result.clone();
    lab.cni(0, "CHECK", (&web, "eth0"), &config).unwrap();
    let netlink = web.netns.netlink().unwrap();
    let index = web.interface("eth0").unwrap().index;
    let net = web_result["ips"][0]["address"].as_str().unwrap().parse().unwrap();
    netlink.delete_address(index, net).unwrap();
    let wrong = lab.cni(0, "CHECK", (&web, "eth0"), &config).unwrap_err();
    assert!(wrong["details"].as_str().unwrap().contains("lacks the address"), "{wrong}");

    for (host, pod, ifname, pool) in [
        (0, &web, "eth0", "web"),
        (0, &web, "net1", "storage"),
        (1, &client, "eth0", "clients"),
        (1, &client, "net1", "storage"),
        (1, &other, "eth0", "others"),
    ] {
        // The second DEL finds no interface and succeeds.
        for _ in 0..2 {
            lab.cni(host, "DEL", (pod, ifname), &lab.config(host, pool)).unwrap();
        }
        assert!(pod.interface(ifname).is_none());
    }
    lab.assert_clean(0);
    lab.assert_clean(1);
}

#[test]
fn nothing_is_left_when_the_plugin_is_killed_at_any_moment() {
    testkit::require_root!();
    let lab = Lab::new("user");
    let config = lab.config(0, "web");
    let seed = testkit::random::environment("WEFT_TEST_SEED", 1);
    let mut random = Random::new(seed);
    let pods: Vec<Pod> = (0..8).map(|_| Pod::new()).collect();
    // The kills happen at random times during an ADD, which takes about this long.
    let begin = Instant::now();
    lab.add(0, (&pods[0], "eth0"), &config);
    let length = usize::try_from(begin.elapsed().as_micros()).unwrap() * 3 / 2;
    lab.cni(0, "DEL", (&pods[0], "eth0"), &config).unwrap();
    let (mut killed, mut complete) = (0, 0);
    for turn in 0..48 {
        let pod = &pods[turn % pods.len()];
        let command = if random.once_in(4) { "DEL" } else { "ADD" };
        let mut plugin = lab.start_plugin(0, command, (pod, "eth0"), &config);
        thread::sleep(Duration::from_micros(random.below(length) as u64));
        let _ = plugin.kill();
        match plugin.wait().unwrap().code() {
            Some(_) => complete += 1,
            None => killed += 1,
        }
    }
    println!("seed {seed}: {killed} killed, {complete} complete");
    assert!(killed > 0 && complete > 0, "kills land within ADD");
    let mut gc = config.clone();
    let kept = &pods[0];
    let _ = lab.cni(0, "DEL", (kept, "eth0"), &config);
    let result = lab.add(0, (kept, "eth0"), &config);
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": kept.id, "ifname": "eth0" }]);
    lab.cni(0, "GC", (kept, ""), &gc).unwrap();
    // Only the attachment that GC was told to be valid is left.
    assert_eq!(lab.attached(0).len(), 1);
    assert_eq!(lab.host_ends(0).len(), 1);
    assert!(kept.reaches("10.88.255.1"), "{result}");
    assert!(pods[1..].iter().all(|pod| pod.interface("eth0").is_none()));
    gc["cni.dev/valid-attachments"] = json!([]);
    lab.cni(0, "GC", (kept, ""), &gc).unwrap();
    lab.assert_clean(0);
}

#[test]
fn pods_stay_attached_when_the_daemon_is_killed() {
    testkit::require_root!();
    // Set WEFT_TEST_PODS=100 to measure how many pods per minute the plugin adds.
    let count = testkit::random::environment("WEFT_TEST_PODS", 8) as usize;
    let mut lab = Lab::new("kernel");
    let config = lab.config(0, "web");
    let pods: Vec<Pod> = (0..count).map(|_| Pod::new()).collect();
    let begin = Instant::now();
    let results: Vec<_> = pods.iter().map(|pod| lab.add(0, (pod, "eth0"), &config)).collect();
    let seconds = begin.elapsed().as_secs_f64();
    println!("{count} pods in {seconds:.1} s: {:.0} a minute", 60.0 * count as f64 / seconds);
    let (first, last) = (&pods[0], address(&results[count - 1], 0));
    assert!(first.reaches(last));
    // A pod that is deleted while no daemon runs must not be attached again.
    lab.kill(0);
    lab.cni(0, "DEL", (&pods[count - 1], "eth0"), &config).unwrap();
    let status = lab.cni(0, "STATUS", (first, ""), &config).unwrap_err();
    assert_eq!(status["code"], 50, "{status}");
    lab.start(0);
    lab.wait_answers(0);
    assert_eq!(lab.attached(0).len(), count - 1);
    assert!(first.reaches(address(&results[1], 0)));
    // A reload keeps attached interfaces, unless the new file lacks their pool.
    let file = lab.folder.join("network.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = lab.weft(0, &["reload", "--json", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let reloaded = reload(&text);
    assert_eq!(reloaded["ports"]["kept"], count - 1, "{reloaded}");
    let reloaded = reload(
        &text
            .replace("name = \"web\"", "name = \"away\"")
            .replace("web = [\"web\"]", "web = [\"away\"]"),
    );
    assert_eq!(reloaded["ports"]["removed"].as_array().unwrap().len(), count - 1);
    reload(&text);
    assert!(first.reaches(address(&results[1], 0)));
    lab.cni(0, "GC", (first, ""), &config).unwrap();
    lab.assert_clean(0);
}

#[test]
fn interface_is_attached_by_hand_when_no_runtime_does_it() {
    testkit::require_root!();
    let lab = Lab::new("user");
    let host = &lab.hosts[0].netns;
    let ip = |arguments: &str| {
        let mut ip = host.program("ip");
        assert!(ip.args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
    };
    ip("link add veth1 mtu 1442 type veth peer name guest1 mtu 1442");
    ip("link set veth1 up");
    let weft = |arguments: &str| {
        let words: Vec<_> = arguments.split(' ').collect();
        let output = lab.weft(0, &words);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let (code, text) = weft("port add web veth1 --owner me");
    assert_eq!(code, 0);
    assert!(
        text.starts_with("attached veth1 to web.h1.1: 02:00:58:00:00:01 10.88.0.10/16"),
        "{text}"
    );
    assert_eq!(weft("port add web veth1 --owner me").0, 0, "once more is the same");
    for (wrong, why) in [
        ("port add web veth1 --owner other", "already: detach it first"),
        ("port add none veth2", "no pool `none` on host h1"),
        ("port add web.h2.1 veth2", "no pool `web.h2.1` on host h1"),
        ("port add web.h1.1 veth2", "has a device already"),
        ("port add web veth2 --address 10.1.1.1", "has the address 10.1.1.1"),
        ("port add web eth0", "is the uplink"),
        ("port add web a/b", "is not an interface name"),
        ("port del", "required"),
    ] {
        let (code, text) = weft(wrong);
        assert!(code == 2 && text.contains(why), "{wrong}: {code} {text}");
    }
    let output = lab.weft(1, &["port", "add", "web", "disk0"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("a port of the network file has it"), "{text}");
    let (code, text) = weft("port list");
    assert!(code == 0 && text.contains("120   119") && text.contains("veth1"), "{text}");
    assert_eq!(weft("port del --owner me"), (0, "detached web.h1.1\n".to_owned()));
    assert_eq!(weft("port del --owner me"), (0, "nothing was attached\n".to_owned()));
    lab.assert_clean(0);
    assert!(host.netlink().link("veth1").is_ok(), "the interface stays");
}

#[test]
fn host_local_assigns_addresses_when_the_configuration_says_so() {
    testkit::require_root!();
    testkit::require_program!("/usr/lib/cni/host-local", "containernetworking-plugins");
    let lab = Lab::new("user");
    let mut config = lab.config(0, "web");
    // The host-local of Debian 12 supports CNI up to version 1.0.
    config["cniVersion"] = "1.0.0".into();
    let store = lab.folder.join("host-local");
    config["ipam"] = json!({
        "type": "host-local", "dataDir": store, "routes": [{ "dst": "0.0.0.0/0" }],
        "ranges": [[{
            "subnet": "10.88.0.0/16", "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.129",
            "gateway": "10.88.255.1",
        }]],
    });
    let [a, b] = [(); 2].map(|()| Pod::new());
    let result = lab.add(0, (&a, "eth0"), &config);
    assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result}");
    let other = lab.add(0, (&b, "eth0"), &config);
    assert_ne!(address(&result, 0), address(&other, 0));
    assert!(a.reaches(address(&other, 0)) && b.reaches("10.88.255.1"));
    let reserved = || {
        let entries = std::fs::read_dir(store.join("net-web")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("10.")).count()
    };
    assert_eq!(reserved(), 2);
    // An address outside of the pool is released again, and ADD fails.
    let mut wrong = config.clone();
    wrong["ipam"]["ranges"][0][0]["rangeStart"] = "10.88.7.1".into();
    wrong["ipam"]["ranges"][0][0]["rangeEnd"] = "10.88.7.9".into();
    let pod = Pod::new();
    let refused = lab.cni(0, "ADD", (&pod, "eth0"), &wrong).unwrap_err();
    assert!(refused["details"].as_str().unwrap().contains("has the address"), "{refused}");
    assert!(pod.interface("eth0").is_none());
    assert_eq!(reserved(), 2);
    lab.cni(0, "DEL", (&a, "eth0"), &config).unwrap();
    assert_eq!(reserved(), 1);
    config["cniVersion"] = "1.1.0".into();
    // The host-local of Debian 12 does not support GC, but the reservations of stale attachments
    // must be released.
    config["cni.dev/valid-attachments"] = json!([]);
    let _ = lab.cni(0, "GC", (&b, ""), &config);
    lab.assert_clean(0);
}

#[test]
fn errors_have_the_codes_of_the_specification_when_input_is_wrong() {
    testkit::require_root!();
    let lab = Lab::new("user");
    let pod = Pod::new();
    let config = lab.config(0, "storage");
    let versions = lab.cni(0, "VERSION", (&pod, ""), &json!({ "cniVersion": "1.1.0" })).unwrap();
    assert!(versions["supportedVersions"].as_array().unwrap().contains(&"1.1.0".into()));
    lab.cni(0, "STATUS", (&pod, ""), &config).unwrap();
    let code = |command: &str, ifname: &str, key: &str, value: Value| {
        let mut config = config.clone();
        config[key] = value;
        lab.cni(0, command, (&pod, ifname), &config).unwrap_err()["code"].clone()
    };
    assert_eq!(code("ADD", "eth0", "cniVersion", "9.0.0".into()), 1);
    assert_eq!(code("FLY", "eth0", "name", "n".into()), 4);
    assert_eq!(code("ADD", "", "name", "n".into()), 4);
    assert_eq!(code("ADD", "eth0", "pool", "none".into()), 7);
    assert_eq!(code("ADD", "eth0", "pool", 7.into()), 6);
    assert_eq!(code("STATUS", "", "pool", "none".into()), 50);
    assert_eq!(code("CHECK", "eth0", "name", "n".into()), 7);
    assert_eq!(code("ADD", "eth0", "ipam", json!({ "type": "../sh" })), 7);
    assert_eq!(code("ADD", "eth0", "ipam", json!({ "type": "none" })), 7);
    let ips = json!({ "ips": ["10.99.0.1/24"] });
    assert_eq!(code("ADD", "eth0", "runtimeConfig", ips), 101);
    lab.assert_clean(0);
    // A requested address is assigned. When the pool is exhausted, ADD fails.
    let mut requested = config.clone();
    requested["runtimeConfig"] = json!({ "ips": ["10.89.0.12/24"] });
    let pods: Vec<Pod> = (0..5).map(|_| Pod::new()).collect();
    let result = lab.add(0, (&pods[0], "eth0"), &requested);
    assert_eq!(address(&result, 0), "10.89.0.12");
    for pod in &pods[1..4] {
        lab.add(0, (pod, "eth0"), &config);
    }
    let full = lab.cni(0, "ADD", (&pods[4], "eth0"), &config).unwrap_err();
    assert!(full["details"].as_str().unwrap().contains("are in use"), "{full}");
    assert!(pods[4].interface("eth0").is_none());
    let status = lab.cni(0, "STATUS", (&pod, ""), &config).unwrap_err();
    assert_eq!(status["code"], 50);
    // Tests the help text and the error for a missing CNI_COMMAND.
    let output = Command::new(PLUGIN).arg("--help").output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"weft-cni is a CNI plugin"));
    let output = Command::new(PLUGIN).env_remove("CNI_COMMAND").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(std::path::Path::new(DEBIAN_PLUGINS).is_absolute());
}
