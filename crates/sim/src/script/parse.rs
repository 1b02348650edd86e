//! Parsing text into steps.

use super::cursor::Cursor;
use super::packet::{Icmp, Segment};
use super::{Action, Assertion, Call, Comparison, Error, Script, Step, When};

/// Most steps of a script.
const STEPS_MAX: usize = 10_000;

impl Script {
    /// Parses a script.
    ///
    /// # Errors
    /// The first text that is not understood, with its line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut script = Script::default();
        let mut cursor = Cursor::new(text);
        loop {
            cursor.space()?;
            if cursor.is_end() {
                return Ok(script);
            }
            if cursor.eat("--") {
                script.parse_option(&mut cursor)?;
            } else if cursor.eat("`") {
                script.parse_settings(&mut cursor)?;
            } else {
                let step = parse_step(&mut cursor)?;
                script.steps.push(step);
            }
            if script.steps.len() > STEPS_MAX {
                return cursor.fail("too many steps");
            }
        }
    }

    /// Parses `--ip_version=ipv4` and `--ip_version=ipv6`.
    fn parse_option(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        match cursor.run(|c| !c.is_whitespace()) {
            "ip_version=ipv4" => self.v6 = false,
            "ip_version=ipv6" => self.v6 = true,
            other => return cursor.fail(format!("`--{other}` is not an option of scripts")),
        }
        Ok(())
    }

    /// Parses `sysctl [-q] name=value ...`, also several on separate lines.
    fn parse_settings(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        let start = *cursor;
        for line in cursor.until("`")?.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                None => continue,
                Some("sysctl") => {}
                Some(other) => return start.fail(format!("`{other}` is not sysctl")),
            }
            for word in words.filter(|word| *word != "-q" && *word != "-w") {
                let Some((name, value)) = word.split_once('=') else {
                    return start.fail(format!("`{word}` is not name=value"));
                };
                self.settings.push((name.into(), value.into()));
            }
        }
        if self.steps.is_empty() {
            Ok(())
        } else {
            start.fail("settings come before the first step")
        }
    }
}

fn parse_step(cursor: &mut Cursor<'_>) -> Result<Step, Error> {
    let line = cursor.line();
    let when = parse_when(cursor)?;
    let action = parse_action(cursor)?;
    let fits = match (&action, when) {
        (Action::Expect(_), When::Waiting(..)) => false,
        (Action::Expect(_) | Action::Call(..), _) => true,
        (_, when) => matches!(when, When::At(_) | When::After(_)),
    };
    if !fits || matches!((&action, when), (Action::Call(..), When::Any | When::Between(..))) {
        return cursor.fail("this step cannot have such a time");
    }
    cursor.blanks();
    if cursor.is_line_end() {
        Ok(Step { line, when, action })
    } else {
        cursor.wanted("a line's end")
    }
}

fn parse_when(cursor: &mut Cursor<'_>) -> Result<When, Error> {
    if cursor.eat("*") {
        return Ok(When::Any);
    }
    if !cursor.eat("+") {
        return Ok(When::At(cursor.seconds()?));
    }
    let from = cursor.seconds()?;
    if cursor.eat("...") {
        let to = cursor.seconds()?;
        return if from <= to {
            Ok(When::Waiting(from, to))
        } else {
            cursor.fail("ends too early")
        };
    }
    if cursor.eat("~") {
        cursor.expect("+")?;
        let to = cursor.seconds()?;
        return if from <= to {
            Ok(When::Between(from, to))
        } else {
            cursor.fail("ends too early")
        };
    }
    Ok(When::After(from))
}

fn parse_action(cursor: &mut Cursor<'_>) -> Result<Action, Error> {
    if cursor.eat("<") {
        if cursor.eat_word("icmp") {
            return Ok(Action::InjectIcmp(Icmp::parse(cursor)?));
        }
        let segment = Segment::parse(cursor)?;
        if segment.options.is_none() {
            return cursor.fail("what arrives needs its options stated");
        }
        return Ok(Action::Inject(segment));
    }
    if cursor.eat(">") {
        return Ok(Action::Expect(Segment::parse(cursor)?));
    }
    if cursor.eat("%{") {
        return Ok(Action::Assert(parse_assertions(cursor)?));
    }
    let (call, expected) = Call::parse(cursor)?;
    Ok(Action::Call(call, expected))
}

/// Parses `assert field == value` and other comparisons, separated by lines or semicolons.
fn parse_assertions(cursor: &mut Cursor<'_>) -> Result<Vec<Assertion>, Error> {
    let start = *cursor;
    let mut assertions = Vec::new();
    for text in cursor.until("}%")?.split(['\n', ';']).map(str::trim) {
        if !text.is_empty() {
            match parse_assertion(text) {
                Some(assertion) => assertions.push(assertion),
                None => return start.fail(format!("`{text}` is not `assert field == number`")),
            }
        }
    }
    Ok(assertions)
}

fn parse_assertion(text: &str) -> Option<Assertion> {
    let text = text.strip_prefix("assert ")?;
    // The text after the comma is for messages and is ignored.
    let text = text.split_once(',').map_or(text, |(text, _)| text);
    let mut words = text.split_whitespace();
    let field = words.next().filter(|field| field.starts_with("tcpi_"))?.to_string();
    let comparison = match words.next()? {
        "==" => Comparison::Equal,
        "!=" => Comparison::NotEqual,
        "<=" => Comparison::AtMost,
        ">=" => Comparison::AtLeast,
        "<" => Comparison::Below,
        ">" => Comparison::Above,
        _ => return None,
    };
    let value = match words.next()? {
        "TCP_CA_Open" => 0,
        "TCP_CA_Disorder" => 1,
        "TCP_CA_CWR" => 2,
        "TCP_CA_Recovery" => 3,
        "TCP_CA_Loss" => 4,
        number => number.parse().ok()?,
    };
    words.next().is_none().then_some(Assertion { field, comparison, value })
}
