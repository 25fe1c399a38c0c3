//! Two hosts that each run a daemon, pods, and a container runtime that starts the CNI plugin.

use crate::PLUGIN;
use netdev::{Link, OwnedNetns};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::host::{TestHost, pair, wait_until};

/// How long an expected state may take to be reached.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The directory where Debian installs CNI plugins.
pub const DEBIAN_PLUGINS: &str = "/usr/lib/cni";

/// A host with its daemon.
pub struct Host {
    pub name: &'static str,
    pub netns: TestHost,
    daemon: Option<Child>,
    datapath: &'static str,
}

/// Two hosts that share one network file.
pub struct Lab {
    pub hosts: [Host; 2],
    pub folder: PathBuf,
}

/// A pod: a network namespace, and the identifier that the runtime uses for it.
pub struct Pod {
    pub id: String,
    pub netns: OwnedNetns,
}

impl Pod {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("weft-pod-{}-{number}", std::process::id());
        let netns = OwnedNetns::create(&id).expect("a namespace can be created");
        Self { id, netns }
    }

    /// Sends an echo request from the pod. Returns whether there is a reply.
    pub fn reaches(&self, address: &str) -> bool {
        let mut ping = self.netns.command(Command::new("ping"));
        let ping = ping.args(["-c", "1", "-W", "1", address]).stdout(Stdio::null());
        ping.status().expect("ping can be started").success()
    }

    pub fn interface(&self, name: &str) -> Option<Link> {
        self.netns.netlink().expect("a netlink socket").link(name).ok()
    }
}

impl Lab {
    /// Starts both daemons.
    pub fn new(datapath: &'static str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weft-cni-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("a directory can be made");
        let (a, b) = (TestHost::new("h1"), TestHost::new("h2"));
        let (end_a, end_b) = pair(&a, &b);
        let text = include_str!("network.toml")
            .replace("192.0.2.1", &end_a.ip4.to_string())
            .replace("192.0.2.2", &end_b.ip4.to_string());
        fs::write(folder.join("network.toml"), text).expect("a file can be written");
        let host = |name, netns| Host { name, netns, daemon: None, datapath };
        let mut lab = Self { hosts: [host("h1", a), host("h2", b)], folder };
        for index in 0..2 {
            lab.start(index);
        }
        for index in 0..2 {
            lab.wait_answers(index);
        }
        lab
    }

    pub fn start(&mut self, host: usize) {
        let (file, control) = (self.folder.join("network.toml"), self.control(host));
        let Host { name, netns, daemon, datapath } = &mut self.hosts[host];
        let mut command = netns.command(Command::new(weft()));
        command.args(["run", "--datapath", datapath, "--host", name, "--control"]);
        command.arg(control).arg(file).env("WEFT_LOG", "warn").stderr(Stdio::inherit());
        *daemon = Some(command.spawn().expect("the daemon can be started"));
    }

    pub fn wait_answers(&self, host: usize) {
        wait_until(PATIENCE, "the daemon answers", || self.try_ports(host).is_some());
    }

    /// Kills the daemon of a host.
    pub fn kill(&mut self, host: usize) {
        let mut daemon = self.hosts[host].daemon.take().expect("a daemon");
        daemon.kill().expect("a child can be killed");
        daemon.wait().expect("a child can be waited for");
    }

    pub fn control(&self, host: usize) -> PathBuf {
        self.folder.join(format!("{}.sock", self.hosts[host].name))
    }

    pub fn try_ports(&self, host: usize) -> Option<Value> {
        let output = self.weft(host, &["port", "list", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The interfaces that the daemon has attached.
    pub fn attached(&self, host: usize) -> Vec<Value> {
        let mut reply = self.try_ports(host).expect("the daemon answers");
        reply["attached"].as_array_mut().map(std::mem::take).expect("a list")
    }

    /// Runs a command of weft that uses the control socket.
    pub fn weft(&self, host: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(weft());
        command.args(arguments).arg("--control").arg(self.control(host));
        command.output().expect("weft can be started")
    }

    /// A CNI network configuration.
    pub fn config(&self, host: usize, pool: &str) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": format!("net-{pool}"), "type": "weft-cni",
            "pool": pool, "control": self.control(host),
        })
    }

    /// Starts the plugin as a runtime does, and writes `config` to its standard input.
    pub fn start_plugin(
        &self,
        host: usize,
        command: &str,
        (pod, ifname): (&Pod, &str),
        config: &Value,
    ) -> Child {
        let mut plugin = self.hosts[host].netns.command(Command::new(PLUGIN));
        plugin.env_clear().env("CNI_COMMAND", command).env("CNI_CONTAINERID", &pod.id);
        plugin.env("CNI_NETNS", Path::new("/run/netns").join(&pod.id));
        plugin.env("CNI_IFNAME", ifname).env("CNI_PATH", DEBIAN_PLUGINS);
        plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut plugin = plugin.spawn().expect("the plugin can be started");
        let input = plugin.stdin.take();
        // Errors are ignored: the plugin may have been killed, or may have failed already.
        let _ = input.map(|mut input| input.write_all(config.to_string().as_bytes()));
        plugin
    }

    /// Executes a command of the plugin. The error is the JSON error object that the plugin prints.
    pub fn cni(
        &self,
        host: usize,
        command: &str,
        interface: (&Pod, &str),
        config: &Value,
    ) -> Result<Value, Value> {
        let plugin = self.start_plugin(host, command, interface, config);
        let output = plugin.wait_with_output().expect("the plugin ends");
        let printed = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    /// Executes ADD for an interface; returns the result.
    pub fn add(&self, host: usize, interface: (&Pod, &str), config: &Value) -> Value {
        let added = self.cni(host, "ADD", interface, config);
        added.unwrap_or_else(|error| panic!("ADD fails: {error}"))
    }

    /// The names of the interfaces on a host that the plugin has created.
    pub fn host_ends(&self, host: usize) -> Vec<String> {
        let links = self.hosts[host].netns.netlink().links().expect("links can be listed");
        let names = links.into_iter().map(|link| link.name);
        names.filter(|name| name.starts_with("wp")).collect()
    }

    /// Checks that no resource of any pod is left on a host.
    pub fn assert_clean(&self, host: usize) {
        assert_eq!(self.attached(host), [] as [Value; 0]);
        assert_eq!(self.host_ends(host), [] as [String; 0]);
        let mut files = self.control(host).into_os_string();
        files.push(".ports");
        assert_eq!(fs::read_dir(files).expect("a directory").count(), 0);
        let show = self.weft(host, &["show", "--json"]);
        let show: Value = serde_json::from_slice(&show.stdout).expect("JSON");
        let ports = show["ports"].as_array().expect("a list");
        assert!(ports.iter().all(|port| port["name"] == "disk"), "{show}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in 0..2 {
            let _ = self.weft(host, &["stop", "--purge"]);
            if let Some(mut daemon) = self.hosts[host].daemon.take() {
                let _ = daemon.kill();
                let _ = daemon.wait();
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The address number `index` of a result, without prefix length.
pub fn address(result: &Value, index: usize) -> &str {
    let text = result["ips"][index]["address"].as_str().expect("an address");
    text.split_once('/').expect("a prefix length").0
}

fn weft() -> PathBuf {
    let weft = PathBuf::from(PLUGIN).with_file_name("weft");
    assert!(weft.is_file(), "{} is missing: run `cargo build -p weft`", weft.display());
    weft
}
