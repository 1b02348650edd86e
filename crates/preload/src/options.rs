//! The settings of the stack, from the environment variable `TOWPATH_PRELOAD`.
//!
//! The text is the link to attach to, then settings, all separated by commas:
//! `stream:/run/vm3.sock,address=10.0.2.20/24,gateway=10.0.2.1`. `docs/preload.md` has the list.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use towpath::host;
use towpath_capi::Config;

/// The environment variable.
pub(crate) const VARIABLE: &str = "TOWPATH_PRELOAD";

/// What the stack is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The TAP interface of this name, which is created if it does not exist.
    Tap(String),
    /// A Unix socket at this path that takes a stream of frames, such as a port of `towpath up`.
    Stream(PathBuf),
}

/// The settings.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) link: Link,
    pub(crate) config: Config,
}

impl Options {
    /// Reads the text. An error is a message for the user.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let first = words.next().unwrap_or_default();
        let link = match first.split_once(':') {
            Some(("tap", name)) if !name.is_empty() => Link::Tap(name.into()),
            Some(("stream", path)) if !path.is_empty() => Link::Stream(path.into()),
            _ => {
                return Err(format!(
                    "`{first}` is no link; begin with tap:NAME or stream:PATH, for example \
                     stream:/run/vm3.sock,address=10.0.2.20/24,gateway=10.0.2.1"
                ));
            }
        };
        // A program that asks to lend does not know where that costs more than a copy.
        let mut config = Config { lends_auto: true, ..Config::default() };
        for word in words {
            apply(&mut config, word)?;
        }
        if config.host.addresses.is_empty() {
            return Err("there is no address; add one, such as address=10.0.2.20/24".into());
        }
        config.host.check().map_err(|error| error.to_string())?;
        Ok(Self { link, config })
    }
}

/// Applies one setting.
fn apply(config: &mut Config, word: &str) -> Result<(), String> {
    let wrong = |expected: &dyn Display| Err(format!("`{word}`: expected {expected}"));
    let Some((name, value)) = word.split_once('=') else {
        return wrong(&"a setting such as address=10.0.2.20/24");
    };
    let host: &mut host::Config = &mut config.host;
    match name {
        "address" => match address(value) {
            Some(address) => host.addresses.push(address),
            None => return wrong(&"an address with its prefix length, such as 10.0.2.20/24"),
        },
        "gateway" => match value.parse() {
            Ok(gateway) => host.gateways.push(gateway),
            Err(_) => return wrong(&"an address, such as 10.0.2.1"),
        },
        "mac" => match mac(value) {
            Some(mac) => host.mac = Some(mac),
            None => return wrong(&"a unicast address, such as 02:00:00:00:00:01"),
        },
        "mtu" => match value.parse() {
            Ok(mtu) => host.mtu = mtu,
            Err(_) => return wrong(&"a number of bytes up to 65535"),
        },
        "memory" => match value.parse() {
            Ok(memory) => host.memory = memory,
            Err(_) => return wrong(&"a number of bytes, such as 67108864"),
        },
        "linger" => match value.parse() {
            Ok(milliseconds) => config.linger = Duration::from_millis(milliseconds),
            Err(_) => return wrong(&"a number of milliseconds, such as 5000"),
        },
        _ => {
            return Err(format!(
                "`{name}` is no setting; there are address, gateway, mac, mtu, memory and linger"
            ));
        }
    }
    Ok(())
}

fn address(value: &str) -> Option<(IpAddr, u8)> {
    let (address, len) = value.split_once('/')?;
    Some((address.parse().ok()?, len.parse().ok()?))
}

fn mac(value: &str) -> Option<[u8; 6]> {
    let mut bytes = value.split(':').map(|byte| {
        let is_byte = byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(byte, 16).ok().filter(|_| is_byte)
    });
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    (bytes.next().is_none() && mac[0] & 1 == 0).then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let all = "stream:/run/a b.sock,address=10.0.2.20/24,address=fd00::20/64,gateway=10.0.2.1,\
                   gateway=fd00::1,mac=02:00:00:00:0a:FF,mtu=9000,memory=2097152,linger=0";
        let Options { link, config } = Options::parse(all).expect("all settings");
        assert_eq!(link, Link::Stream("/run/a b.sock".into()));
        let host = &config.host;
        let addresses: [(IpAddr, u8); 2] =
            [([10, 0, 2, 20].into(), 24), ("fd00::20".parse().expect("an address"), 64)];
        assert_eq!(host.addresses, addresses);
        assert_eq!(host.gateways.len(), 2);
        assert_eq!((host.mac, host.mtu, host.memory), (Some([2, 0, 0, 0, 10, 255]), 9000, 2 << 20));
        assert!(config.lends_auto);
        assert_eq!(config.linger, Duration::ZERO);
        let usual = Options::parse("tap:tap0,address=192.0.2.2/24").expect("the least");
        assert_eq!(usual.link, Link::Tap("tap0".into()));
        assert_eq!(usual.config.linger, Config::default().linger);
    }

    /// Goal: each wrong text is refused, and the message has the part that is wrong.
    #[test]
    fn wrong_settings_are_refused() {
        let with = |setting: &str| format!("tap:tap0,address=192.0.2.2/24,{setting}");
        for (text, part) in [
            (String::new(), "no link"),
            ("tap".into(), "`tap`"),
            ("tap:,address=192.0.2.2/24".into(), "`tap:`"),
            ("eth0".into(), "`eth0`"),
            ("tap:tap0".into(), "no address"),
            (with(""), "``"),
            (with("address"), "`address`"),
            (with("address=192.0.2.2"), "`address=192.0.2.2`"),
            (with("address=192.0.2.300/24"), "`address=192.0.2.300/24`"),
            (with("address=192.0.2.2/33"), "192.0.2.2/33"),
            (with("gateway=192.0.2.1/24"), "`gateway=192.0.2.1/24`"),
            (with("mac=01:00:00:00:00:01"), "`mac=01:00:00:00:00:01`"),
            (with("mac=02:00:00:00:01"), "`mac=02:00:00:00:01`"),
            (with("mac=+2:00:00:00:00:01"), "`mac=+2:00:00:00:00:01`"),
            (with("mtu=100"), "100"),
            (with("mtu=65536"), "`mtu=65536`"),
            (with("memory=1"), "1 bytes"),
            (with("linger=-1"), "`linger=-1`"),
            (with("Address=192.0.2.2/24"), "`Address`"),
        ] {
            let message = Options::parse(&text).expect_err(&text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
