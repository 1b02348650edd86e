//! Converts TOML to the objects that [`fields`](towpath_gateway::control::fields) parses, and
//! records where in the text each of them is.

use std::collections::HashMap;

use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue, Error};
use towpath_gateway::control::fields::{Fields, Wrong};

/// A parsed file.
pub(crate) struct Document<'a> {
    text: &'a str,
    /// Offsets of keys and of list members in the text, by path.
    places: HashMap<String, usize>,
}

impl<'a> Document<'a> {
    /// Parses a text.
    ///
    /// # Errors
    /// A message with line and column.
    pub(crate) fn read(text: &'a str) -> Result<(Self, Fields), String> {
        let mut document = Self { text, places: HashMap::new() };
        let table = DeTable::parse(text).map_err(|error| document.syntax(&error))?;
        let value = document.table(table.get_ref(), "");
        let fields = Fields::of(value, "").map_err(|wrong| document.explain(&wrong))?;
        Ok((document, fields))
    }

    /// Returns a message for `wrong`, with line and column.
    pub(crate) fn explain(&self, wrong: &Wrong) -> String {
        format!("{}: {}", self.place(&wrong.path), wrong.message)
    }

    /// Returns line and column of the value at `path`, or of what contains it.
    pub(crate) fn place(&self, mut path: &str) -> String {
        while !self.places.contains_key(path) {
            let Some((outer, _)) = path.rsplit_once('.') else { return "1:1".to_owned() };
            path = outer;
        }
        self.line_and_column(self.places[path])
    }

    fn line_and_column(&self, offset: usize) -> String {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        format!("{line}:{column}")
    }

    fn syntax(&self, error: &Error) -> String {
        let at = self.line_and_column(error.span().map_or(0, |span| span.start));
        format!("{at}: {}", error.message())
    }

    fn table(&mut self, table: &DeTable<'_>, path: &str) -> Value {
        let mut map = Map::new();
        for (key, value) in table {
            let path = format!("{path}.{}", key.get_ref());
            self.places.insert(path.clone(), key.span().start);
            map.insert(key.get_ref().to_string(), self.value(value.get_ref(), &path));
        }
        Value::Object(map)
    }

    fn value(&mut self, value: &DeValue<'_>, path: &str) -> Value {
        match value {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Boolean(is_so) => (*is_so).into(),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Null, Into::into)
            }
            DeValue::Table(table) => self.table(table, path),
            DeValue::Array(values) => {
                let mut all = Vec::new();
                for (index, value) in values.iter().enumerate() {
                    let path = format!("{path}.{index}");
                    self.places.insert(path.clone(), value.span().start);
                    all.push(self.value(value.get_ref(), &path));
                }
                all.into()
            }
            // No setting has these types.
            DeValue::Float(_) | DeValue::Datetime(_) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found_by_line_and_column() {
        let text = "mtu = 1400\n[[port]]\nname = 'a'\n\n[[port]]\n  'näme' = 3\nvlan = 0x10\n";
        let (document, mut fields) = Document::read(text).unwrap();
        assert_eq!(fields.number("mtu", 0, 9000).unwrap(), Some(1400));
        let mut ports = fields.all("port").unwrap().into_iter();
        assert_eq!(ports.next().unwrap().text("name").unwrap().as_deref(), Some("a"));
        let mut second = ports.next().unwrap();
        assert_eq!(document.place(second.path()), "5:1");
        assert_eq!(second.number("vlan", 0, 99).unwrap(), Some(16));
        assert_eq!(second.text("name").unwrap(), None);
        let wrong = document.explain(&second.finish().unwrap_err());
        assert_eq!(wrong, "6:3: unknown key 'näme'; did you mean 'name'?");
        assert_eq!(document.place(".nowhere"), "1:1");
    }

    #[test]
    fn what_is_no_toml_is_refused() {
        for (text, place) in
            [("a = ", "1:5"), ("a = 1\na = 2", "2:1"), ("x\ny", "1:2"), ("[a", "1:3")]
        {
            let error = Document::read(text).err().unwrap();
            assert!(error.starts_with(&format!("{place}: ")), "{text:?}: {error}");
        }
        let deep = format!("a = {}", "[".repeat(10_000));
        assert!(Document::read(&deep).is_err());
    }
}
