//! Settings of AF_XDP uplinks.

use std::fmt;
use std::str::FromStr;

/// Settings of an AF_XDP socket. As text: `INTERFACE[,queue=N][,mode=auto|native|generic]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpSettings {
    /// Name of the interface.
    pub interface: String,
    /// Number of its queue.
    pub queue: u32,
    /// How the XDP program runs.
    pub mode: Mode,
}

/// How an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the driver if that supports it, else in the kernel's generic receive path.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel's generic receive path, which works with every interface.
    Generic,
}

impl Mode {
    /// All modes.
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::Native, Self::Generic];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or("expected auto, native or generic")
    }
}

impl FromStr for XdpSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let interface = parts.next().unwrap_or_default().to_owned();
        if interface.is_empty() {
            return Err("expected an interface, as in eth1,queue=0,mode=native".to_owned());
        }
        let mut settings = Self { interface, queue: 0, mode: Mode::Auto };
        for part in parts {
            match part.split_once('=') {
                Some(("queue", value)) => {
                    let queue = value.parse().ok().filter(|queue| *queue <= QUEUE_MAX);
                    settings.queue = queue.ok_or_else(|| {
                        format!("'{value}' is not a queue; expected a number from 0 to {QUEUE_MAX}")
                    })?;
                }
                Some(("mode", value)) => {
                    let mode = value.parse();
                    settings.mode = mode.map_err(|expected| {
                        format!("'{value}' is not a mode of XDP; {expected}")
                    })?;
                }
                _ => {
                    return Err(format!(
                        "'{part}' is not a setting of an XDP port; expected queue=N or \
                         mode=auto|native|generic"
                    ));
                }
            }
        }
        Ok(settings)
    }
}

impl fmt::Display for XdpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, queue, mode } = self;
        write!(f, "{interface},queue={queue},mode={mode}")
    }
}

/// Largest number of a queue: more than the queues of any network card.
pub const QUEUE_MAX: u32 = 4095;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_and_shown() {
        let parse = |text: &str| text.parse::<XdpSettings>().map(|settings| settings.to_string());
        assert_eq!(parse("eth1").as_deref(), Ok("eth1,queue=0,mode=auto"));
        assert_eq!(parse("eth1,mode=native,queue=3").as_deref(), Ok("eth1,queue=3,mode=native"));
        for (text, problem) in [
            ("", "expected an interface"),
            (",queue=1", "expected an interface"),
            ("eth1,queue=-1", "'-1' is not a queue"),
            ("eth1,queue=4096", "0 to 4095"),
            ("eth1,mode=driver", "'driver' is not a mode of XDP; expected auto, native"),
            ("eth1,native", "'native' is not a setting"),
            ("eth1,", "'' is not a setting"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
    }
}
