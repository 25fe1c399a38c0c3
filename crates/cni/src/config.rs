//! The environment of the plugin and the network configuration on its standard input.

use crate::outcome::{self, AddResult, Error, Route};
use serde::Deserialize;
use serde_json::Value;
use std::env;
use std::net::IpAddr;
use std::path::PathBuf;

/// The versions of CNI that this plugin knows.
pub const SUPPORTED: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The version of a configuration without `cniVersion`.
const DEFAULT_VERSION: &str = "0.3.1";
/// The longest name of an interface.
const MAX_INTERFACE_BYTES: usize = 15;
/// The longest container ID that is accepted. Runtimes use 64 characters.
const MAX_ID_BYTES: usize = 255;

/// The command of the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// The environment variables of the protocol.
#[derive(Debug)]
pub struct Environment {
    pub command: Command,
    /// The container and its interface, except for GC, STATUS and VERSION.
    pub attachment: Option<Attachment>,
    /// The path of the network namespace. It can be missing for DEL.
    pub netns: Option<PathBuf>,
    /// The addresses in `CNI_ARGS`.
    pub addresses: Vec<IpAddr>,
}

/// A container and the name of an interface in it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container: String,
    pub ifname: String,
}

impl Environment {
    /// # Errors
    /// A variable is missing or invalid.
    pub fn read() -> Result<Self, Error> {
        Self::of(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let invalid = |name: &str, why: &str| {
            Error::new(outcome::ENVIRONMENT, format!("invalid environment variable {name}"), why)
        };
        let command = match variable("CNI_COMMAND").as_deref() {
            Some("ADD") => Command::Add,
            Some("DEL") => Command::Del,
            Some("CHECK") => Command::Check,
            Some("GC") => Command::Gc,
            Some("STATUS") => Command::Status,
            Some("VERSION") => Command::Version,
            _ => {
                let why = "it must be ADD, DEL, CHECK, GC, STATUS or VERSION";
                return Err(invalid("CNI_COMMAND", why));
            }
        };
        let mut this = Self { command, attachment: None, netns: None, addresses: Vec::new() };
        if matches!(command, Command::Gc | Command::Status | Command::Version) {
            return Ok(this);
        }
        let container = variable("CNI_CONTAINERID").unwrap_or_default();
        if !is_id(&container) {
            let why = "it must begin with a letter or digit, and have letters, digits, _ . - only";
            return Err(invalid("CNI_CONTAINERID", why));
        }
        let ifname = variable("CNI_IFNAME").unwrap_or_default();
        if !is_interface_name(&ifname) {
            return Err(invalid("CNI_IFNAME", "it is not the name of an interface"));
        }
        this.netns = variable("CNI_NETNS").map(PathBuf::from);
        if this.netns.is_none() && command != Command::Del {
            return Err(invalid("CNI_NETNS", "it must be the path of a network namespace"));
        }
        for (name, value) in variable("CNI_ARGS").iter().flat_map(|args| pairs(args)) {
            if name == "IP" {
                let ip = value.parse().map_err(|_| invalid("CNI_ARGS", "IP is no IP address"))?;
                this.addresses.push(ip);
            }
        }
        this.attachment = Some(Attachment { container, ifname });
        Ok(this)
    }

    /// The container and its interface.
    ///
    /// # Errors
    /// The command has no container.
    pub fn attachment(&self) -> Result<&Attachment, Error> {
        self.attachment.as_ref().ok_or_else(|| {
            Error::new(outcome::ENVIRONMENT, "no container", "CNI_CONTAINERID is missing")
        })
    }
}

fn pairs(args: &str) -> impl Iterator<Item = (&str, &str)> {
    args.split(';').filter_map(|pair| pair.split_once('='))
}

/// Whether a text is a valid name of a network or container, by the CNI specification.
fn is_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.len() <= MAX_ID_BYTES
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
}

fn is_interface_name(text: &str) -> bool {
    let forbidden = |byte: u8| !byte.is_ascii_graphic() || b"/:%".contains(&byte);
    !matches!(text, "" | "." | ".." | "all" | "default")
        && text.len() <= MAX_INTERFACE_BYTES
        && !text.bytes().any(forbidden)
}

/// The network configuration.
#[derive(Debug, Deserialize)]
pub struct NetworkConfig {
    #[serde(rename = "cniVersion", default)]
    pub cni_version: String,
    /// The name of the network.
    #[serde(default)]
    pub name: String,
    /// The pool of ports.
    #[serde(default)]
    pub pool: String,
    /// The control socket of the daemon; by default the socket of the only daemon on this host.
    pub control: Option<PathBuf>,
    /// Whether containers get a default route to the router of their switch.
    #[serde(rename = "defaultRoute", default = "yes")]
    pub default_route: bool,
    #[serde(default)]
    pub ipam: Ipam,
    /// Copied to the result.
    #[serde(default)]
    pub dns: Value,
    #[serde(rename = "runtimeConfig", default)]
    runtime: RuntimeConfig,
    /// The result of ADD, for CHECK and DEL.
    #[serde(rename = "prevResult")]
    pub prev_result: Option<AddResult>,
    /// The attachments that GC must not remove.
    #[serde(rename = "cni.dev/valid-attachments", default)]
    pub valid: Vec<Attachment>,
    /// The whole configuration, which is passed to the IPAM plugin.
    #[serde(skip)]
    pub text: Vec<u8>,
}

/// The assignment of addresses (IPAM).
#[derive(Debug, Default, Deserialize)]
pub struct Ipam {
    /// The IPAM plugin; if it is missing, the daemon assigns addresses.
    #[serde(rename = "type")]
    pub plugin: Option<String>,
    /// Routes that replace the default route, if the daemon assigns addresses.
    #[serde(default)]
    pub routes: Vec<Route>,
}

#[derive(Debug, Default, Deserialize)]
struct RuntimeConfig {
    /// Addresses requested for the container, with or without prefix length.
    #[serde(default)]
    ips: Vec<String>,
}

const fn yes() -> bool {
    true
}

impl NetworkConfig {
    /// # Errors
    /// The configuration is not JSON, is invalid, or has an unknown version of CNI.
    pub fn parse(input: &[u8]) -> Result<Self, Error> {
        let mut config: Self = serde_json::from_slice(input).map_err(|error| {
            Error::new(outcome::DECODE, "cannot decode the network configuration", error)
        })?;
        if config.cni_version.is_empty() {
            DEFAULT_VERSION.clone_into(&mut config.cni_version);
        }
        if !SUPPORTED.contains(&config.cni_version.as_str()) {
            let known = format!("{} is none of {}", config.cni_version, SUPPORTED.join(", "));
            return Err(Error::new(outcome::VERSION, "incompatible CNI versions", known));
        }
        let invalid =
            |why: String| Error::new(outcome::CONFIG, "invalid network configuration", why);
        if !is_id(&config.name) {
            let why = format!("`name` is {:?}; begin with a letter or digit", config.name);
            return Err(invalid(why));
        }
        if config.pool.is_empty() {
            let why = "`pool` is missing; name a [[logical_switch.pool]] of the network file";
            return Err(invalid(why.to_owned()));
        }
        config.text = input.to_owned();
        Ok(config)
    }

    /// The addresses that the runtime requests.
    ///
    /// # Errors
    /// An address is invalid.
    pub fn requested_addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let parse = |text: &String| {
            let address = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
            address.parse().map_err(|_| {
                let why = format!("runtimeConfig.ips has {text:?}, which is no IP address");
                Error::new(outcome::CONFIG, "invalid network configuration", why)
            })
        };
        self.runtime.ips.iter().map(parse).collect()
    }

    /// Whether results have the form of CNI 1.0 and later.
    pub fn is_version_1(&self) -> bool {
        self.cni_version.starts_with("1.")
    }
}

/// The version that a configuration names, for errors about the rest of it.
pub fn version_of(input: &[u8]) -> String {
    let value: Value = serde_json::from_slice(input).unwrap_or_default();
    let named = value.get("cniVersion").and_then(Value::as_str);
    named.unwrap_or(DEFAULT_VERSION).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Result<Environment, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Environment::of(find).map_err(|error| error.to_string())
    }

    #[test]
    fn environment_names_the_variable_that_is_invalid() {
        let good = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;IP=10.0.0.7"),
        ];
        let read = environment(&good).unwrap();
        assert_eq!(read.addresses, [IpAddr::from([10, 0, 0, 7])]);
        assert_eq!(read.attachment().unwrap().container, "c1");
        for (variable, value) in [
            ("CNI_COMMAND", "add"),
            ("CNI_CONTAINERID", "../c1"),
            ("CNI_CONTAINERID", ""),
            ("CNI_NETNS", ""),
            ("CNI_IFNAME", "eth/0"),
            ("CNI_ARGS", "IP=x"),
        ] {
            let mut bad = good;
            for pair in bad.iter_mut().filter(|pair| pair.0 == variable) {
                pair.1 = value;
            }
            let bad: Vec<_> = bad.into_iter().filter(|pair| !pair.1.is_empty()).collect();
            let error = environment(&bad).unwrap_err();
            assert!(error.contains(variable), "{variable}={value}: {error}");
        }
        assert!(environment(&[("CNI_COMMAND", "GC")]).unwrap().attachment().is_err());
    }

    #[test]
    fn configuration_is_refused_with_the_code_of_the_specification() {
        let parse = |text: &str| NetworkConfig::parse(text.as_bytes());
        let table = [
            ("{", outcome::DECODE),
            (r#"{"cniVersion":"2.0.0","name":"n","pool":"p"}"#, outcome::VERSION),
            (r#"{"cniVersion":"1.1.0","name":"a/b","pool":"p"}"#, outcome::CONFIG),
            (r#"{"cniVersion":"1.1.0","name":"n"}"#, outcome::CONFIG),
        ];
        for (text, code) in table {
            let json = parse(text).unwrap_err().to_json("1.1.0");
            assert!(json.contains(&format!("\"code\":{code}")), "{text}: {json}");
        }
        let config = parse(
            r#"{"name":"n","type":"weft-cni","pool":"p","runtimeConfig":{"ips":["10.0.0.7/16"]}}"#,
        );
        let config = config.unwrap();
        assert_eq!(config.cni_version, DEFAULT_VERSION);
        assert_eq!(config.requested_addresses().unwrap(), [IpAddr::from([10, 0, 0, 7])]);
        assert!(config.default_route && config.ipam.plugin.is_none());
    }
}
