//! Tests that Debian's Prometheus, which scrapes two daemons, accepts the metrics, the rules and
//! every query of the Grafana board.

use super::board::{Board, Series};
use super::{ADDRESS, Answer, SCRAPE, ask, connect};
use crate::common::frames::{FrameSocket, frame, note};
use crate::common::{Daemon, GUEST_DEVICE, Lab, PATIENCE, Setup, traffic};
use serde_json::Value;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::host::{TestHost, wait_until};
use testkit::{require_program, require_root};
use wire::MacAddr;

/// The address at which Prometheus responds, in the namespace of `h1`.
const PROMETHEUS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// The value for Grafana's variable `$__rate_interval`: a time of at least four scrapes.
const RATE_INTERVAL: &str = "5s";
/// If this variable is set, the test collects data for [`PICTURE_TIME`], and writes a picture of
/// the board to the path in the variable.
const PICTURE: &str = "WEFT_BOARD_PICTURE";
const PICTURE_TIME: Duration = Duration::from_secs(120);

/// The path of a file in `packaging/metrics`.
pub fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/metrics").join(name)
}

/// A running Prometheus. Dropping it ends it.
pub struct Prometheus<'l> {
    host: &'l TestHost,
    child: Child,
}

impl<'l> Prometheus<'l> {
    /// Starts Prometheus, which scrapes `targets` once per second.
    fn start(lab: &'l Lab, targets: &[String]) -> Self {
        let folder = lab.dir.path().join("prometheus");
        fs::create_dir(&folder).expect("a directory can be made");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{:?}]\n\
             scrape_configs: [{{job_name: weft, static_configs: [{{targets: {targets:?}}}]}}]\n",
            fs::canonicalize(packaged("weft.rules.yml")).expect("the rules are there")
        );
        fs::write(folder.join("prometheus.yml"), config).expect("a file can be written");
        let log = fs::File::create(folder.join("log")).expect("a file can be made");
        let host = &lab.hosts[0].netns;
        let child = host
            .program("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Prometheus can be started");
        let prometheus = Self { host, child };
        wait_until(PATIENCE, "Prometheus is ready", || {
            host.run(|| std::net::TcpStream::connect(PROMETHEUS)).is_ok()
                && prometheus.get("/-/ready").status == 200
        });
        prometheus
    }

    fn get(&self, target: &str) -> Answer {
        // With HTTP/1.0, the response is not split into chunks.
        let request = format!("GET {target} HTTP/1.0\r\nHost: prometheus\r\n\r\n");
        ask(connect(self.host, PROMETHEUS), request.as_bytes())
    }

    /// The data in a response of the Prometheus API.
    fn api(&self, target: &str) -> Value {
        let Answer { status, body, .. } = self.get(&format!("/api/v1/{target}"));
        assert_eq!(status, 200, "{target}: {body}");
        let mut answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["status"], "success", "{target}: {body}");
        answer["data"].take()
    }

    /// The current values of a query.
    fn query(&self, expression: &str) -> Vec<f64> {
        let data = self.api(&format!("query?query={}", percent_encode(expression)));
        let found = data["result"].as_array().expect("a vector").iter();
        found.map(|sample| number(&sample["value"][1])).collect()
    }

    /// The values of a query in the last `span`, with the labels of each series.
    pub fn query_range(&self, expression: &str, span: Duration) -> Vec<Series> {
        let end = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        let (start, end) = ((end - span).as_secs(), end.as_secs());
        let data = self.api(&format!(
            "query_range?start={start}&end={end}&step=1&query={}",
            percent_encode(expression)
        ));
        let found = data["result"].as_array().expect("a matrix").iter();
        let point =
            |pair: &Value| (pair[0].as_f64().expect("a time") - start as f64, number(&pair[1]));
        found
            .map(|series| Series {
                labels: series["metric"].as_object().expect("labels").clone(),
                points: series["values"].as_array().expect("values").iter().map(point).collect(),
            })
            .collect()
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        // Its data is no longer needed, so it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(value: &Value) -> f64 {
    value.as_str().expect("a number as text").parse().expect("a number")
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// An expression of the board, in which the variables are replaced, as Grafana does.
pub fn expand(expression: &str) -> String {
    let expanded = expression.replace("$__rate_interval", RATE_INTERVAL);
    let expanded = expanded.replace("$instance", ".*").replace("$port", ".*");
    assert!(!expanded.contains('$'), "an unknown variable: {expression}");
    expanded
}

/// Runs promtool, which must succeed and write nothing to standard error.
fn promtool(arguments: &[&str], input: Option<&str>) {
    let mut command = Command::new("promtool");
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::piped());
    let mut child = command.spawn().expect("promtool can be started");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, input.unwrap_or_default().as_bytes()).expect("a pipe");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let [printed, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
    let (printed, stderr) = (printed.expect("UTF-8"), stderr.expect("UTF-8"));
    assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {printed}\n{stderr}");
}

/// Generates traffic of all types: new flows, streams, and frames that are dropped.
struct Traffic<'l> {
    lab: &'l Lab,
    socket: FrameSocket,
    turn: u16,
}

impl<'l> Traffic<'l> {
    fn new(lab: &'l Lab) -> Self {
        let socket = FrameSocket::open(&lab.ends().0.netns, GUEST_DEVICE);
        Self { lab, socket, turn: 0 }
    }

    /// Sends one round of traffic. Its amount rises and falls, so that the picture shows curves.
    fn send(&mut self) {
        let (near, far) = self.lab.ends();
        let [high, low] = self.turn.to_be_bytes();
        for number in 0..=(self.turn % 40).to_be_bytes()[1] {
            let nobody = MacAddr([2, 0, 1, number, high, low]);
            self.socket.send(&note(nobody, near.mac, "to nobody"));
        }
        self.socket.send(&frame(far.mac, near.mac, 0x0800, b"no IP"));
        traffic::udp_echo(near, far, 4, 1000);
        let len = 10_000 * (1 + usize::from(self.turn % 60));
        traffic::tcp(near, far, 4, len);
        traffic::tcp(far, near, 4, len / 4);
        self.turn = self.turn.wrapping_add(1);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until each rule has been evaluated without an error. Returns the number of rules.
fn rules_are_healthy(prometheus: &Prometheus<'_>) -> usize {
    let mut count = 0;
    wait_until(PATIENCE, "all rules were evaluated", || {
        let data = prometheus.api("rules");
        let groups = data["groups"].as_array().expect("groups").iter();
        let rules: Vec<_> =
            groups.flat_map(|group| group["rules"].as_array().expect("rules")).collect();
        let failed = rules.iter().find(|rule| rule["health"] == "err");
        assert!(failed.is_none(), "{failed:#?}");
        count = rules.len();
        count > 0 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    count
}

/// Waits until each query of the board has values, except queries about OVN, which is not used
/// here.
fn board_has_values(prometheus: &Prometheus<'_>, board: &Board, traffic: &mut Traffic<'_>) {
    let expressions: Vec<_> = board.expressions().map(expand).collect();
    assert!(expressions.len() > 30, "{} queries", expressions.len());
    let mut missing = Vec::new();
    let end = Instant::now() + PATIENCE;
    loop {
        missing.clear();
        for expression in &expressions {
            let values = prometheus.query(expression);
            if expression.contains("weft_ovn_") {
                assert!(values.is_empty(), "{expression}: {values:?}");
            } else if !values.iter().any(|value| value.is_finite()) {
                missing.push(expression);
            }
        }
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "no values: {missing:#?}");
        traffic.send();
    }
}

#[test]
fn prometheus_takes_metrics_rules_and_all_queries_of_the_board() {
    require_root!();
    require_program!("prometheus", "prometheus");
    require_program!("promtool", "prometheus");
    require_program!("chromium", "chromium");
    let rules = packaged("weft.rules.yml");
    promtool(&["check", "rules", rules.to_str().expect("UTF-8")], None);
    let tests = packaged("weft.rules.test.yml");
    promtool(&["test", "rules", tests.to_str().expect("UTF-8")], None);

    let lab = Lab::new(Setup::new("geneve"));
    let far = SocketAddr::new(lab.hosts[1].underlay(4), ADDRESS.port()).to_string();
    let daemons = [
        lab.start_with(0, &["--metrics", &ADDRESS.to_string()]),
        lab.start_with(1, &["--metrics", &far]),
    ];
    let prometheus = Prometheus::start(&lab, &[ADDRESS.to_string(), far]);
    let board = Board::read();
    let mut traffic = Traffic::new(&lab);
    wait_until(PATIENCE, "both daemons are scraped", || {
        traffic.send();
        prometheus.query("up{job=\"weft\"}") == [1.0, 1.0]
    });
    assert!(rules_are_healthy(&prometheus) >= 30);
    board_has_values(&prometheus, &board, &mut traffic);
    let picture = std::env::var_os(PICTURE).map(PathBuf::from);
    let span = if picture.is_some() { PICTURE_TIME } else { Duration::from_secs(10) };
    let end = Instant::now() + span;
    while picture.is_some() && Instant::now() < end {
        traffic.send();
    }
    let picture = picture.unwrap_or_else(|| lab.dir.path().join("board.png"));
    board.draw(&prometheus, span, lab.dir.path(), &picture);
    assert_eq!(prometheus.query("ALERTS{alertstate=\"firing\"}"), [0.0; 0], "all is well");
    let recorded = prometheus.query("instance:weft_port_receive_bytes:rate5m");
    assert!(recorded.iter().all(|rate| *rate > 0.0) && recorded.len() == 2, "{recorded:?}");
    // This type exists only in OpenMetrics, so Prometheus must have requested that format.
    let metadata = prometheus.api("metadata?metric=weft_build");
    assert_eq!(metadata["weft_build"][0]["type"], "info", "{metadata}");
    let text = ask(connect(&lab.hosts[0].netns, ADDRESS), SCRAPE.as_bytes()).body;
    promtool(&["check", "metrics"], Some(&text));
    testkit::report::peer("Prometheus", "scrapes metrics, evaluates rules and the board");
    drop(prometheus);
    daemons.into_iter().for_each(Daemon::stop);
}
