//! Results and errors in the JSON format of the CNI specification (section 5).

use crate::config::SUPPORTED;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Display;

/// Error code: incompatible version of CNI.
pub const VERSION: u32 = 1;
/// Error code: invalid environment variables.
pub const ENVIRONMENT: u32 = 4;
/// Error code: an input or output operation failed.
pub const IO: u32 = 5;
/// Error code: the configuration is not valid JSON.
pub const DECODE: u32 = 6;
/// Error code: the configuration is invalid.
pub const CONFIG: u32 = 7;
/// Error code: the runtime should try again later.
pub const LATER: u32 = 11;
/// Error code: ADD cannot succeed.
pub const UNAVAILABLE: u32 = 50;
/// Error code: the interface differs from the expected state. 100 is the first plugin-specific
/// code.
pub const NOT_AS_EXPECTED: u32 = 100;
/// Error code: the daemon refuses the request.
pub const REFUSED: u32 = 101;

/// An error result.
#[derive(Debug)]
pub struct Error {
    code: u32,
    message: String,
    details: String,
    /// The error that another plugin printed, which is printed unchanged.
    passed_on: Option<Value>,
}

impl Error {
    /// An error of this plugin: what has failed, and why.
    pub fn new(code: u32, message: impl Display, details: impl Display) -> Self {
        let (message, details) = (message.to_string(), details.to_string());
        Self { code, message, details, passed_on: None }
    }

    /// The error of a plugin that this plugin has started.
    pub fn of_plugin(plugin: &str, printed: &[u8]) -> Self {
        let passed_on = serde_json::from_slice(printed).ok().filter(Value::is_object);
        let details = String::from_utf8_lossy(printed).trim().to_owned();
        Self { code: REFUSED, message: format!("{plugin} has failed"), details, passed_on }
    }

    /// The JSON object.
    pub fn to_json(&self, version: &str) -> String {
        let Self { code, message, details, passed_on } = self;
        let own =
            || json!({ "cniVersion": version, "code": code, "msg": message, "details": details });
        passed_on.clone().unwrap_or_else(own).to_string()
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.message, self.details)
    }
}

/// The result of ADD, also as `prevResult` and from IPAM plugins.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AddResult {
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<Ip>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    pub dns: Value,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub name: String,
    pub mac: String,
    /// In bytes. Only since version 1.1 of CNI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of the network namespace; empty on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ip {
    /// `4` or `6`. Only before version 1.0 of CNI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// With prefix length.
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// The index of the interface in the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Route {
    pub dst: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<String>,
}

/// The result of VERSION.
pub fn versions(version: &str) -> String {
    json!({ "cniVersion": version, "supportedVersions": SUPPORTED }).to_string()
}
