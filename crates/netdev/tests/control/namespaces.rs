use std::fs;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

use netdev::{Error, LinkKind, LinkSpec, Netns, OwnedNetns};
use testkit::host::{TestHost, wait_until};

fn unique(name: &str) -> String {
    format!("weft-control-{}-{name}", process::id())
}

#[test]
fn namespace_is_refused_when_its_name_is_taken() {
    testkit::require_root!();
    let name = unique("twice");
    let first = OwnedNetns::create(&name).unwrap();
    let error = Netns::create(&name).unwrap_err();
    assert!(error.is_exists(), "{error}");
    let again = Netns::open(&name).expect("the failed creation left the first one alone");
    assert_eq!(again.id().unwrap(), first.id().unwrap());
}

#[test]
fn name_without_a_namespace_is_recognised_and_can_be_removed() {
    testkit::require_root!();
    drop(TestHost::new("makes-the-directory"));
    let name = unique("stale");
    fs::write(Path::new("/run/netns").join(&name), "").unwrap();
    let error = Netns::open(&name).unwrap_err();
    Netns::remove(&name).unwrap();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    assert!(Netns::open(&name).unwrap_err().is_not_found());
}

#[test]
fn name_and_devices_are_gone_when_a_namespace_is_removed() {
    testkit::require_root!();
    let name = unique("removed");
    let (near, far) = (TestHost::new("near"), OwnedNetns::create(&name).unwrap());
    let peer = LinkSpec::new("far0").netns(&far);
    near.netlink().create(&LinkSpec::new("near0"), &LinkKind::Veth { peer }).unwrap();
    drop(far);

    assert!(!Netns::list().unwrap().contains(&name));
    assert!(!Path::new("/run/netns").join(&name).exists());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&name));
    assert!(Netns::open(&name).unwrap_err().is_not_found());
    assert!(Netns::remove(&name).unwrap_err().is_not_found());
    wait_until(Duration::from_secs(10), "the near end of the pair goes too", || {
        near.netlink().link("near0").is_err_and(|error| error.is_not_found())
    });
}

#[test]
fn loopback_is_up_when_a_namespace_is_new() {
    testkit::require_root!();
    let host = TestHost::new("lo");
    let links = host.netlink().links().unwrap();
    assert!(links.iter().any(|link| link.name == "lo" && link.up && link.running), "{links:?}");
}

#[test]
fn caller_stays_in_its_namespace_when_work_runs_inside() {
    testkit::require_root!();
    let host = TestHost::new("inside");
    let before = Netns::current().unwrap().id().unwrap();
    let inside = host.run(|| Netns::current().unwrap().id().unwrap());
    assert_eq!(inside, host.id().unwrap());
    assert_eq!(Netns::current().unwrap().id().unwrap(), before);
    assert_ne!(inside, before);
}

#[test]
fn panic_reaches_the_caller_when_work_inside_panics() {
    testkit::require_root!();
    let host = TestHost::new("panic");
    let netns = Netns::clone(&host);
    let panic = catch_unwind(move || netns.run_in(|| panic!("inside"))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"inside"));
}

#[test]
fn child_starts_inside_when_its_command_was_prepared() {
    testkit::require_root!();
    let host = TestHost::new("child");
    let mut command = host.command(Command::new("readlink"));
    let output = command.arg("/proc/self/ns/net").output().unwrap();
    let expected = format!("net:[{}]\n", host.id().unwrap());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    let mut child = host.program("sleep").arg("60").spawn().unwrap();
    let path = format!("/proc/{}/ns/net", child.id());
    let of_child = Netns::open_path(path.as_ref()).unwrap();
    assert_eq!(of_child.id().unwrap(), host.id().unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn sysctl_changes_only_its_namespace() {
    testkit::require_root!();
    let (host, other) = (TestHost::new("sysctl"), TestHost::new("other"));
    host.sysctl("net/ipv4/ip_forward", "1").unwrap();
    host.sysctl("net/ipv4/tcp_congestion_control", "reno").unwrap();
    assert_eq!(host.read_sysctl("net/ipv4/ip_forward").unwrap(), "1");
    assert_eq!(host.read_sysctl("net/ipv4/tcp_congestion_control").unwrap(), "reno");
    assert_eq!(other.read_sysctl("net/ipv4/ip_forward").unwrap(), "0");
    assert_ne!(other.read_sysctl("net/ipv4/tcp_congestion_control").unwrap(), "reno");
    assert!(host.sysctl("net/ipv4/no_such_setting", "1").unwrap_err().is_not_found());
}

#[test]
fn namespaces_are_shared_with_iproute2() {
    testkit::require_root!();
    testkit::require_program!("ip", "iproute2");
    let ours = TestHost::new("ours");
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap().stdout;
    assert!(String::from_utf8(listed).unwrap().contains(ours.name().unwrap()));
    let name = unique("theirs");
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
    let theirs = Netns::open(&name).and_then(|netns| netns.id());
    Netns::remove(&name).unwrap();
    assert_ne!(theirs.unwrap(), ours.id().unwrap());
}

#[test]
fn namespaces_do_not_hide_each_other_when_created_at_once() {
    testkit::require_root!();
    let made: Vec<OwnedNetns> = thread::scope(|scope| {
        let create = |number: usize| move || OwnedNetns::create(&unique(&format!("n{number}")));
        let workers: Vec<_> = (0..16).map(|number| scope.spawn(create(number))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap().unwrap()).collect()
    });
    let mut ids: Vec<u64> = made
        .iter()
        .map(|netns| Netns::open(netns.name().unwrap()).unwrap().id().unwrap())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 16);
}
