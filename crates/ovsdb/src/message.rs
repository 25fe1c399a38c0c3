//! The envelope of a message (RFC 7047 section 4, JSON-RPC 1.0).

use crate::uuid::Uuid;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A message of any kind. Its parts are not parsed yet.
#[derive(serde::Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// A message by kind.
pub(crate) enum Message<'a> {
    /// A request of the server, which expects a reply.
    Request { method: Cow<'a, str>, params: &'a RawValue, id: &'a RawValue },
    /// A notification.
    Notification { method: Cow<'a, str>, params: &'a RawValue },
    /// The reply to a request.
    Reply { id: &'a RawValue, outcome: Result<&'a RawValue, &'a RawValue> },
}

/// Undecoded rows of tables in a message: table, UUID, row.
pub(crate) type RawTables<'a> = Members<String, Members<Uuid, &'a RawValue>>;

/// The members of an object in the order of the text, as for rows that the framer yields early.
pub(crate) struct Members<K, V>(pub Vec<(K, V)>);

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Members<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor(PhantomData))
    }
}

struct MembersVisitor<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for MembersVisitor<K, V> {
    type Value = Members<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Parses a message.
pub(crate) fn parse(text: &[u8]) -> Result<Message<'_>, String> {
    let envelope: Envelope<'_> =
        serde_json::from_slice(text).map_err(|error| format!("not JSON-RPC: {error}"))?;
    let Envelope { id, method, params, result, error } = envelope;
    let id = id.filter(|id| !is_null(id));
    let error = error.filter(|error| !is_null(error));
    match (method, params, id) {
        (Some(method), Some(params), Some(id)) => Ok(Message::Request { method, params, id }),
        (Some(method), Some(params), None) => Ok(Message::Notification { method, params }),
        (Some(method), None, _) => Err(format!("`{method}` has no params")),
        (None, _, None) => Err("neither `method` nor `id`".to_owned()),
        (None, _, Some(id)) => match (result, error) {
            (_, Some(error)) => Ok(Message::Reply { id, outcome: Err(error) }),
            (Some(result), None) => Ok(Message::Reply { id, outcome: Ok(result) }),
            (None, None) => Err("neither `result` nor `error`".to_owned()),
        },
    }
}

/// Parses a part of a message to a tree.
pub(crate) fn tree(part: &RawValue) -> Value {
    // The framer bounds nesting, and the part is a slice of valid JSON.
    serde_json::from_str(part.get()).unwrap_or_default()
}

/// The reply to a request of the server.
pub(crate) fn reply(id: &RawValue, outcome: Result<&RawValue, &str>) -> Vec<u8> {
    let (result, error) = match outcome {
        Ok(result) => (result.get(), "null".to_owned()),
        Err(error) => ("null", Value::from(error).to_string()),
    };
    format!("{{\"id\":{},\"result\":{result},\"error\":{error}}}", id.get()).into_bytes()
}
