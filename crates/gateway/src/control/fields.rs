//! Parses objects of the control socket, tables of network files and lists of settings on the
//! command line, field by field.
//!
//! A parser takes every field that it knows. [`Fields::finish`] rejects what is left and suggests
//! the known field with the most similar name.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

/// Least similarity, from 0 to 1, of a name that is suggested: one letter of six may be wrong, or
/// two swapped.
const ALIKE_MIN: f64 = 0.8;
/// Longest part of a value that a message shows, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// An object that is being parsed.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    path: String,
    known: Vec<&'static str>,
}

/// A value that is not valid, and its path: names and indexes from the outermost on, each after a
/// dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Path of the value.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Wrong {}

impl Fields {
    /// Takes the fields of the object at `path`.
    pub fn of(value: Value, path: &str) -> Result<Self, Wrong> {
        match value {
            Value::Object(map) => Ok(Self { map, path: path.to_owned(), known: Vec::new() }),
            other => {
                let message = format!("expected an object, got {}", shown(&other));
                Err(Wrong { path: path.to_owned(), message })
            }
        }
    }

    /// Takes the fields of a list of settings, `KEY=VALUE,KEY=VALUE`; all values are strings.
    pub fn of_settings(text: &str) -> Result<Self, Wrong> {
        let wrong = |message: String| Wrong { path: String::new(), message };
        let mut map = Map::new();
        for setting in text.split(',') {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(wrong(format!("expected KEY=VALUE, got '{setting}'")));
            };
            if map.insert(name.to_owned(), value.into()).is_some() {
                return Err(wrong(format!("key '{name}' is given twice")));
            }
        }
        Ok(Self { map, path: String::new(), known: Vec::new() })
    }

    /// Takes a field and converts it with `read`; `what` describes the expected value.
    pub fn read<T>(
        &mut self,
        name: &'static str,
        what: impl fmt::Display,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Wrong> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => {
                let got = shown(&value);
                Err(self.wrong(name, format!("'{name}': expected {what}, got {got}")))
            }
        }
    }

    /// Takes a string; `None` if the field is absent.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, Wrong> {
        self.read(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a string that errors do not show; `None` if the field is absent.
    pub fn secret(&mut self, name: &'static str) -> Result<Option<String>, Wrong> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, format!("'{name}': expected a string"))),
        }
    }

    /// Takes a Boolean; `None` if the field is absent.
    pub fn yes_or_no(&mut self, name: &'static str) -> Result<Option<bool>, Wrong> {
        self.read(name, "true or false (on the command line yes or no)", Value::as_bool)
    }

    /// Takes a number from `min` to `max`; `None` if the field is absent.
    pub fn number(&mut self, name: &'static str, min: u64, max: u64) -> Result<Option<u64>, Wrong> {
        let is_in = |number: &u64| (min..=max).contains(number);
        let what = format_args!("a number from {min} to {max}").to_string();
        self.read(name, what, |value| value.as_u64().filter(is_in))
    }

    /// Takes a string and parses it; `None` if the field is absent.
    pub fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Wrong> {
        self.parsed_by(name, |text| text.parse::<T>().map_err(|error| error.to_string()))
    }

    /// Takes a string and parses it with `parse`; `None` if the field is absent.
    pub fn parsed_by<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Wrong> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match parse(&text) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(self.wrong(name, format!("'{name}': '{text}': {error}"))),
        }
    }

    /// Takes a list of strings, or a single string; empty if the field is absent.
    pub fn texts(&mut self, name: &'static str) -> Result<Vec<String>, Wrong> {
        let texts = self.read(name, "a string or a list of strings", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// Takes a list of strings, or one string with commas, and parses each; empty if the field is
    /// absent.
    pub fn list<T: FromStr<Err: fmt::Display>>(
        &mut self,
        name: &'static str,
    ) -> Result<Vec<T>, Wrong> {
        let is_one = self.map.get(name).is_some_and(Value::is_string);
        let texts = self.texts(name)?;
        let texts: Vec<_> = match &texts[..] {
            [text] if is_one => {
                text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
            }
            _ => texts,
        };
        let parse = |text: String| {
            let parsed = text.parse::<T>();
            parsed.map_err(|error| self.wrong(name, format!("'{name}': '{text}': {error}")))
        };
        texts.into_iter().map(parse).collect()
    }

    /// Takes a nested object.
    pub fn fields(&mut self, name: &'static str) -> Result<Option<Self>, Wrong> {
        let Some(value) = self.take(name) else { return Ok(None) };
        if !value.is_object() {
            let got = shown(&value);
            return Err(self.wrong(name, format!("'{name}': expected a table, got {got}")));
        }
        Self::of(value, &format!("{}.{name}", self.path)).map(Some)
    }

    /// Takes a list of nested objects; empty if the field is absent.
    pub fn all(&mut self, name: &'static str) -> Result<Vec<Self>, Wrong> {
        let Some(value) = self.take(name) else { return Ok(Vec::new()) };
        let Value::Array(values) = value else {
            let got = shown(&value);
            let wanted = format!("a list of tables, each under [[{name}]]");
            return Err(self.wrong(name, format!("'{name}': expected {wanted}, got {got}")));
        };
        let inner = |(index, value)| Self::of(value, &format!("{}.{name}.{index}", self.path));
        values.into_iter().enumerate().map(inner).collect()
    }

    /// Returns true if the field is present.
    pub fn has(&mut self, name: &'static str) -> bool {
        self.know(name);
        self.map.contains_key(name)
    }

    /// Leaves the fields taken so far out of the suggestions for an unknown field.
    pub(super) fn forget_known(&mut self) {
        self.known.clear();
    }

    /// Returns true if the field is `false`, which disables all that it stands for.
    pub fn is_off(&mut self, name: &'static str) -> bool {
        self.take_if(name, &Value::Bool(false))
    }

    /// Returns true if the field is `"auto"`, which leaves the value to the network.
    pub fn is_automatic(&mut self, name: &'static str) -> bool {
        self.take_if(name, &"auto".into())
    }

    /// Returns the remaining fields as an object.
    pub fn into_value(self) -> Value {
        Value::Object(self.map)
    }

    /// Returns the path of the object.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns an error about a field.
    pub fn wrong(&self, name: &str, message: String) -> Wrong {
        Wrong { path: format!("{}.{name}", self.path), message }
    }

    /// Returns an error about the whole object.
    pub fn all_wrong(&self, message: impl Into<String>) -> Wrong {
        Wrong { path: self.path.clone(), message: message.into() }
    }

    /// Ends parsing: returns an error if a field is left.
    pub fn finish(self) -> Result<(), Wrong> {
        let Some(name) = self.map.keys().next() else { return Ok(()) };
        let like = |known: &&'static str| (strsim::jaro_winkler(known, name), *known);
        let best = self.known.iter().map(like).max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match best.filter(|(alike, _)| *alike >= ALIKE_MIN) {
            Some((_, best)) => format!("; did you mean '{best}'?"),
            None => match self.known.split_last() {
                None => String::new(),
                Some((only, [])) => format!("; expected {only}"),
                Some((last, others)) => format!("; expected {} or {last}", others.join(", ")),
            },
        };
        Err(self.wrong(name, format!("unknown key '{name}'{hint}")))
    }

    /// Takes a field if it has this value.
    fn take_if(&mut self, name: &'static str, value: &Value) -> bool {
        let has_it = self.map.get(name) == Some(value);
        if has_it {
            self.take(name);
        }
        has_it
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.know(name);
        self.map.remove(name)
    }

    fn know(&mut self, name: &'static str) {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
    }
}

/// Formats a value for a message; long strings are cut.
fn shown(value: &Value) -> String {
    match value {
        // Floats out of range and dates of TOML arrive as null.
        Value::Null => "a value of another type".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => match text.char_indices().nth(SHOWN_CHARS_MAX) {
            Some((end, _)) => format!("'{}...'", &text[..end]),
            None => format!("'{text}'"),
        },
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_left_is_refused_with_a_suggestion() {
        let mut fields = Fields::of(json!({ "quue-len": 1 }), ".port.0").unwrap();
        assert_eq!(fields.number("queue-len", 0, 9).unwrap(), None);
        let wrong = fields.finish().unwrap_err();
        assert_eq!(wrong.path, ".port.0.quue-len");
        assert_eq!(wrong.message, "unknown key 'quue-len'; did you mean 'queue-len'?");
        let fields = Fields::of(json!({ "colour": 1 }), "").unwrap();
        assert_eq!(fields.finish().unwrap_err().message, "unknown key 'colour'");
        let mut fields = Fields::of(json!({ "colour": 1, "vlan": 2, "mtu": 3 }), "").unwrap();
        for known in ["mtu", "vlan"] {
            fields.number(known, 0, 9).unwrap();
        }
        let wrong = fields.finish().unwrap_err().message;
        assert_eq!(wrong, "unknown key 'colour'; expected mtu or vlan");
        let mut fields = Fields::of(json!({ "colour": 1 }), "").unwrap();
        for name in ["macs", "vlan", "macs", "router"] {
            assert!(!fields.has(name));
        }
        let wrong = fields.finish().unwrap_err().message;
        assert_eq!(wrong, "unknown key 'colour'; expected macs, vlan or router");
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused() {
        let value = json!({ "a": 1, "b": "x", "c": [1], "d": [], "e": ["10.0.0.1", "y"] });
        let mut fields = Fields::of(value, "").unwrap();
        assert_eq!(fields.text("a").unwrap_err().message, "'a': expected a string, got 1");
        let wrong = fields.number("b", 1, 2).unwrap_err();
        assert_eq!(wrong.message, "'b': expected a number from 1 to 2, got 'x'");
        assert!(fields.list::<String>("c").unwrap_err().message.contains("a list of strings"));
        let wrong = fields.fields("d").unwrap_err();
        assert_eq!(wrong.message, "'d': expected a table, got a list");
        let wrong = fields.list::<std::net::IpAddr>("e").unwrap_err();
        assert!(wrong.message.starts_with("'e': 'y': "), "{wrong}");
        let long = json!({ "f": "é".repeat(SHOWN_CHARS_MAX + 1), "g": null, "h": { "i": 1 } });
        let mut fields = Fields::of(long, "").unwrap();
        let wrong = fields.yes_or_no("f").unwrap_err();
        assert!(wrong.message.ends_with("éé...'"), "{wrong}");
        assert!(fields.text("g").unwrap_err().message.ends_with("got a value of another type"));
        let wrong = fields.all("h").unwrap_err();
        assert_eq!(wrong.message, "'h': expected a list of tables, each under [[h]], got a table");
        let wrong = Fields::of(json!([]), "").unwrap_err();
        assert_eq!(wrong.message, "expected an object, got a list");
        let wrong = Fields::of_settings("a=1,a=2").unwrap_err();
        assert_eq!(wrong.message, "key 'a' is given twice");
        let wrong = Fields::of_settings("a=1,b").unwrap_err();
        assert_eq!(wrong.message, "expected KEY=VALUE, got 'b'");
    }
}
