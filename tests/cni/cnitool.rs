//! Tests with `cnitool`, the program of the CNI project that acts as a container runtime. `cargo
//! xtask cni-walk` builds it and runs these tests; they are not part of CI.

use crate::PLUGIN;
use crate::lab::{Lab, PATIENCE, Pod, address};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::random::Random;

/// The directory in which `cnitool` stores the results of ADD.
const RESULTS: &str = "/var/lib/cni/results";

/// A lab that uses `cnitool` as the container runtime.
struct Walk {
    lab: Lab,
    tool: PathBuf,
    /// The network name of each host. The names differ, because both hosts store results in one
    /// directory.
    networks: [String; 2],
}

impl Walk {
    fn new(datapath: &'static str) -> Self {
        let tool = std::env::var_os("WEFT_TEST_CNITOOL").expect("the path of cnitool");
        let lab = Lab::new(datapath);
        let networks = [0, 1].map(|host| {
            let id = lab.folder.file_name().expect("a name").to_string_lossy().into_owned();
            let network = format!("{id}-{host}");
            let plugin = json!({ "type": "weft-cni", "pool": "web", "control": lab.control(host) });
            let list = json!({ "cniVersion": "1.1.0", "name": network, "plugins": [plugin] });
            let file = lab.folder.join(format!("{network}.conflist"));
            fs::write(file, list.to_string()).expect("a file can be written");
            network
        });
        Self { lab, tool: tool.into(), networks }
    }

    /// Starts a command of `cnitool` in a separate process group.
    fn start(&self, host: usize, command: &str, pod: &Pod) -> Child {
        let mut tool = self.lab.hosts[host].netns.command(Command::new(&self.tool));
        tool.args([command, &self.networks[host]]).arg(Path::new("/run/netns").join(&pod.id));
        tool.env("CNI_PATH", Path::new(PLUGIN).parent().expect("a directory"));
        tool.env("NETCONFPATH", &self.lab.folder).env("CNI_IFNAME", "eth0").process_group(0);
        tool.stdout(Stdio::piped()).stderr(Stdio::piped());
        tool.spawn().expect("cnitool can be started")
    }

    /// Runs a command of `cnitool`. Returns its output, or its standard error if it fails.
    fn run(&self, host: usize, command: &str, pod: &Pod) -> Result<String, String> {
        let output = self.start(host, command, pod).wait_with_output().expect("cnitool ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn add(&self, host: usize, pod: &Pod) -> Value {
        let printed = self.run(host, "add", pod).expect("ADD succeeds");
        serde_json::from_str(&printed).expect("the result is JSON")
    }

    /// Kills 200 commands of `cnitool` together with their plugins, each after at most `length` µs,
    /// and sometimes kills a daemon. Returns the number of commands that were killed, the number of
    /// commands that had ended before, and the number of killed daemons.
    fn kill_at_random(&mut self, pods: &[Pod], length: usize, random: &mut Random) -> [usize; 3] {
        let [mut killed, mut complete, mut daemons] = [0; 3];
        for _ in 0..200 {
            let pod = &pods[random.below(pods.len())];
            let command = ["add", "add", "add", "del", "check"][random.below(5)];
            let tool = self.start(0, command, pod);
            thread::sleep(Duration::from_micros(random.below(length) as u64));
            if random.once_in(20) {
                self.lab.kill(0);
                self.lab.start(0);
                daemons += 1;
            }
            // Kills cnitool and the plugin, which are in one process group.
            let kill = format!("kill -KILL -{}", tool.id());
            let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
            match tool.wait_with_output().expect("cnitool ends").status.code() {
                Some(_) => complete += 1,
                None => killed += 1,
            }
        }
        [killed, complete, daemons]
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        for entry in fs::read_dir(RESULTS).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.networks.iter().any(|network| name.starts_with(network.as_str())) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[test]
#[ignore = "needs cnitool: run `cargo xtask cni-walk`"]
fn cnitool_walks_all_commands_for_pods_of_two_hosts() {
    testkit::require_root!();
    for datapath in ["user", "kernel"] {
        let mut walk = Walk::new(datapath);
        let pods = [(); 2].map(|()| Pod::new());
        let results = [0, 1].map(|host| {
            walk.run(host, "status", &pods[host]).expect("STATUS succeeds");
            let added = walk.add(host, &pods[host]);
            walk.run(host, "check", &pods[host]).expect("CHECK succeeds");
            added
        });
        for family in [0, 1] {
            assert!(pods[0].reaches(address(&results[1], family)), "{datapath}: {results:?}");
            assert!(pods[1].reaches(address(&results[0], family)), "{datapath}: {results:?}");
        }
        walk.run(0, "add", &pods[0]).expect_err("the interface exists");

        // CHECK compares the namespace with the result that cnitool has stored.
        let index = pods[0].interface("eth0").expect("an interface").index;
        let net = results[0]["ips"][0]["address"].as_str().expect("text").parse().expect("a net");
        let netlink = pods[0].netns.netlink().expect("a socket");
        netlink.delete_address(index, net).expect("the address can be deleted");
        let wrong = walk.run(0, "check", &pods[0]).expect_err("CHECK sees it");
        assert!(wrong.contains("lacks the address"), "{wrong}");

        // The GC of cnitool removes all pods of a network. A later DEL finds no pod and succeeds.
        walk.run(0, "gc", &pods[0]).expect("GC succeeds");
        walk.lab.assert_clean(0);
        assert!(pods[0].interface("eth0").is_none());
        for _ in 0..2 {
            walk.run(0, "del", &pods[0]).expect("DEL succeeds");
            walk.run(1, "del", &pods[1]).expect("DEL succeeds");
        }
        walk.lab.assert_clean(1);
        walk.lab.kill(1);
        let status = walk.run(1, "status", &pods[1]).expect_err("no daemon runs");
        assert!(status.contains("h2.sock"), "{status}");
        println!("{datapath}: ADD, CHECK, GC, STATUS and DEL passed on both hosts");
    }
}

#[test]
#[ignore = "needs cnitool: run `cargo xtask cni-walk`"]
fn cnitool_leaks_no_pod_when_anything_is_killed() {
    testkit::require_root!();
    let mut walk = Walk::new("kernel");
    let pods: Vec<Pod> = (0..100).map(|_| Pod::new()).collect();
    for command in ["add", "check", "del"] {
        let begin = Instant::now();
        for pod in &pods {
            walk.run(0, command, pod).expect("the command succeeds");
        }
        let seconds = begin.elapsed().as_secs_f64();
        let rate = 60.0 * pods.len() as f64 / seconds;
        println!("{command}: {} pods in {seconds:.1} s, {rate:.0} a minute", pods.len());
    }
    walk.lab.assert_clean(0);

    // The kills happen at random times during a command. An ADD takes about this long.
    let begin = Instant::now();
    walk.add(0, &pods[0]);
    let length = usize::try_from(begin.elapsed().as_micros()).expect("a second") * 5 / 4;
    let seed = testkit::random::environment("WEFT_TEST_SEED", 1);
    let mut random = Random::new(seed);
    for cleanup in ["del", "gc"] {
        let [killed, complete, daemons] = walk.kill_at_random(&pods, length, &mut random);
        println!("seed {seed}: {killed} killed, {complete} complete, {daemons} daemons killed");
        assert!(killed > 0 && complete > 0 && daemons > 0, "kills land within commands");
        wait_until(PATIENCE, "the daemon answers", || walk.lab.try_ports(0).is_some());
        println!("{} attached before {cleanup}", walk.lab.attached(0).len());
        let last = if cleanup == "gc" { &pods[..1] } else { &pods };
        for pod in last {
            walk.run(0, cleanup, pod).expect("the command succeeds");
        }
        walk.lab.assert_clean(0);
        assert!(pods.iter().all(|pod| pod.interface("eth0").is_none()));
    }
    // The network must still work.
    let results = [0, 1].map(|host| walk.add(host, &pods[host]));
    assert!(pods[0].reaches(address(&results[1], 0)));
}
