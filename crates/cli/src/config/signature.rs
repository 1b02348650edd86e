//! How BGP sessions are signed: settings in the table `[evpn]`, with secrets there or in files of
//! their own. No error shows a secret.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;

use towpath_gateway::control::fields::{Fields, Wrong};
use towpath_io::socket::{
    AoAlgorithm, AoKey, KeyChain, KeyError, Secret, Signature, TCP_KEY_BYTES_MAX,
};

/// Permissions of users that are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;
/// All permissions, without the type of the file.
const PERMISSIONS: u32 = 0o7777;

/// What a table says about signatures.
#[derive(Debug)]
pub(crate) struct Signed {
    /// The path of the table.
    path: String,
    password: Option<Secret>,
    keys: Vec<Key>,
    /// A secret is in the table, not in a file of its own.
    pub(crate) has_secret: bool,
}

/// A key of TCP-AO, and the neighbours that it is for.
#[derive(Debug)]
struct Key {
    path: String,
    key: AoKey,
    /// `None` for all.
    neighbors: Option<Vec<IpAddr>>,
}

impl Signed {
    /// Takes what signs the sessions from the table.
    pub(crate) fn of_table(evpn: &mut Fields) -> Result<Self, Wrong> {
        let path = evpn.path().to_owned();
        let mut signed = Self { path, password: None, keys: Vec::new(), has_secret: false };
        signed.password = secret(evpn, "password", "password-file", &mut signed.has_secret)?;
        if evpn.has("tcp-ao") {
            if signed.password.is_some() {
                return Err(signed.wrong("a password (TCP MD5) excludes it"));
            }
            let keys = evpn.all("tcp-ao")?.into_iter();
            let keys = keys.map(|fields| key(fields, &mut signed.has_secret));
            signed.keys = keys.collect::<Result<_, _>>()?;
            if signed.keys.is_empty() {
                return Err(signed.wrong(KeyError::Count));
            }
        }
        Ok(signed)
    }

    /// Returns what signs the session with each of these neighbours, which are all. Those without a
    /// key are left out.
    pub(crate) fn signatures(
        &self,
        neighbors: &[IpAddr],
    ) -> Result<HashMap<IpAddr, Signature>, Wrong> {
        for Key { path, neighbors: named, .. } in &self.keys {
            let mut named = named.iter().flatten();
            if let Some(other) = named.find(|named| !neighbors.contains(named)) {
                let path = format!("{path}.neighbors");
                let message = format!("'neighbors': {other} is no neighbour of this host");
                return Err(Wrong { path, message });
            }
        }
        let mut signatures = HashMap::new();
        for &neighbor in neighbors {
            if let Some(password) = &self.password {
                signatures.insert(neighbor, Signature::Md5(password.clone()));
            }
            let own = self.keys.iter().filter(|key| key.is_for(neighbor));
            let own: Vec<_> = own.map(|key| key.key.clone()).collect();
            if !own.is_empty() {
                // RFC 5925 §3.1: numbers differ among the keys for a connection.
                let chain = KeyChain::new(own);
                let chain = chain
                    .map_err(|error| self.wrong(format_args!("neighbour {neighbor}: {error}")))?;
                signatures.insert(neighbor, Signature::Ao(chain));
            }
        }
        Ok(signatures)
    }

    fn wrong(&self, why: impl Display) -> Wrong {
        Wrong { path: format!("{}.tcp-ao", self.path), message: format!("'tcp-ao': {why}") }
    }
}

impl Key {
    fn is_for(&self, neighbor: IpAddr) -> bool {
        self.neighbors.as_ref().is_none_or(|named| named.contains(&neighbor))
    }
}

/// Returns the permissions of a file of which users that are neither its owner nor in its group
/// have some.
pub(crate) fn others_may(file: &File) -> io::Result<Option<u32>> {
    let mode = file.metadata()?.permissions().mode() & PERMISSIONS;
    Ok((mode & OTHERS != 0).then_some(mode))
}

/// Parses a key of TCP-AO. If its secret is in the table, `has_secret` becomes true.
fn key(mut fields: Fields, has_secret: &mut bool) -> Result<Key, Wrong> {
    let names = AoAlgorithm::ALL.map(AoAlgorithm::name).join(", ");
    let send_id = fields.number("send-id", 0, u8::MAX.into())?;
    let send_id = send_id.ok_or_else(|| fields.all_wrong("the key has no 'send-id'"))? as u8;
    let recv_id = fields.number("recv-id", 0, u8::MAX.into())?.map_or(send_id, |id| id as u8);
    let algorithm = fields.parsed_by("algorithm", |name| {
        AoAlgorithm::from_name(name).ok_or_else(|| format!("expected one of {names}"))
    })?;
    let algorithm = algorithm.ok_or_else(|| {
        fields.all_wrong(format!("the key has no 'algorithm'; expected one of {names}"))
    })?;
    let secret = secret(&mut fields, "key", "key-file", has_secret)?;
    let secret = secret.ok_or_else(|| fields.all_wrong("the key has no 'key' or 'key-file'"))?;
    let is_for_some = fields.has("neighbors");
    let neighbors = fields.list("neighbors")?;
    if is_for_some && neighbors.is_empty() {
        let why = "'neighbors': expected one or more; without 'neighbors', the key is for all";
        return Err(fields.wrong("neighbors", why.to_owned()));
    }
    let path = fields.path().to_owned();
    fields.finish()?;
    let key = AoKey { send_id, recv_id, algorithm, secret };
    Ok(Key { path, key, neighbors: is_for_some.then_some(neighbors) })
}

/// Takes a secret from the field `name`, or from the file that the field `file` names. In the first
/// case, `has_secret` becomes true.
fn secret(
    fields: &mut Fields,
    name: &'static str,
    file: &'static str,
    has_secret: &mut bool,
) -> Result<Option<Secret>, Wrong> {
    let in_table = fields.secret(name)?;
    *has_secret |= in_table.is_some();
    let (field, read) = match (in_table, fields.text(file)?) {
        (None, None) => return Ok(None),
        (Some(text), None) => (name, Secret::new(text).map_err(|error| error.to_string())),
        (None, Some(path)) => (file, read(&path)),
        (Some(_), Some(_)) => (file, Err(format!("'{name}' is given, too"))),
    };
    read.map(Some).map_err(|why| fields.wrong(field, format!("'{field}': {why}")))
}

/// Reads the secret in the file at `path`, which is all of it but a newline at the end.
fn read(path: &str) -> Result<Secret, String> {
    let failed = |error: io::Error| format!("cannot read '{path}': {error}");
    let file = File::open(path).map_err(failed)?;
    if let Some(mode) = others_may(&file).map_err(failed)? {
        return Err(format!(
            "other users may read or change '{path}' (mode {mode:03o}); run: chmod o= {path}"
        ));
    }
    let mut bytes = Vec::new();
    file.take(TCP_KEY_BYTES_MAX as u64 + 2).read_to_end(&mut bytes).map_err(failed)?;
    bytes.pop_if(|last| *last == b'\n');
    Secret::new(bytes).map_err(|error| format!("'{path}': {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    use crate::config::document::Document;

    /// Neighbours of the host.
    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const TWO: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    /// Returns what signs the sessions with both neighbours, and whether a secret is in the table.
    fn read_all(text: &str) -> Result<([Option<Signature>; 2], bool), String> {
        let (document, mut fields) = Document::read(text)?;
        let read = Signed::of_table(&mut fields).and_then(|signed| {
            fields.finish()?;
            let mut signatures = signed.signatures(&[ONE, TWO])?;
            Ok(([ONE, TWO].map(|neighbor| signatures.remove(&neighbor)), signed.has_secret))
        });
        read.map_err(|wrong| document.explain(&wrong))
    }

    /// Returns what signs the sessions, which is the same with both neighbours.
    fn parse(text: &str) -> Result<Option<Signature>, String> {
        let ([one, two], _) = read_all(text)?;
        assert_eq!(one, two, "{text}");
        Ok(one)
    }

    fn key(send_id: u8, recv_id: u8, algorithm: AoAlgorithm, secret: &str) -> AoKey {
        let secret = Secret::new(secret).expect("short");
        AoKey { send_id, recv_id, algorithm, secret }
    }

    fn chain<const N: usize>(keys: [AoKey; N]) -> Option<Signature> {
        Some(Signature::Ao(KeyChain::new(keys.into()).expect("they differ")))
    }

    /// A file that only its owner and the group may read.
    struct Written(PathBuf);

    impl Written {
        fn new(name: &str, contents: &[u8]) -> Self {
            let name = format!("towpath-secret-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, contents).expect("a file");
            let written = Self(path);
            written.permit(0o640);
            written
        }

        fn permit(&self, mode: u32) {
            fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).expect("its owner");
        }

        fn path(&self) -> &str {
            self.0.to_str().expect("plain text")
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn md5(secret: &str) -> Option<Signature> {
        Some(Signature::Md5(Secret::new(secret).expect("short")))
    }

    #[test]
    fn keys_of_both_kinds_are_read() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("password = 'a'"), Ok(md5("a")));
        let file = Written::new("key", b"a b \n\n");
        let path = file.path();
        assert_eq!(parse(&format!("password-file = '{path}'")), Ok(md5("a b \n")));
        let text = format!(
            "[[tcp-ao]]\nsend-id = 7\nalgorithm = 'hmac-sha-1-96'\nkey = 'new'\n\
             [[tcp-ao]]\nsend-id = 0\nrecv-id = 255\nalgorithm = 'aes-128-cmac-96'\n\
             key-file = '{path}'"
        );
        let keys = [
            key(7, 7, AoAlgorithm::HmacSha1, "new"),
            key(0, 255, AoAlgorithm::Aes128Cmac, "a b \n"),
        ];
        assert_eq!(parse(&text), Ok(chain(keys)));
    }

    /// Goal: a neighbour has the keys that are for it, in the order of the file; keys of two
    /// neighbours may have the same numbers (RFC 5925 §3.1).
    #[test]
    fn keys_are_for_neighbors() {
        let of = |id, secret: &str, neighbors: &str| {
            let algorithm = "algorithm = 'hmac-sha-1-96'";
            format!("[[tcp-ao]]\nsend-id = {id}\n{algorithm}\nkey = '{secret}'\n{neighbors}\n")
        };
        let sha1 = |id, secret| key(id, id, AoAlgorithm::HmacSha1, secret);
        let (one, two) = ("neighbors = ['192.0.2.1']", "neighbors = '192.0.2.2'");
        let both = "neighbors = ['192.0.2.2', '192.0.2.1', '192.0.2.2']";
        let signatures = |text: String| read_all(&text).map(|(signatures, _)| signatures);
        assert_eq!(
            signatures(of(1, "a", one) + &of(1, "b", two)),
            Ok([chain([sha1(1, "a")]), chain([sha1(1, "b")])])
        );
        assert_eq!(
            signatures(of(2, "new", one) + &of(1, "old", "") + &of(3, "c", both)),
            Ok([
                chain([sha1(2, "new"), sha1(1, "old"), sha1(3, "c")]),
                chain([sha1(1, "old"), sha1(3, "c")])
            ])
        );
        assert_eq!(signatures(of(1, "a", two)), Ok([None, chain([sha1(1, "a")])]));
        // Four for each neighbour, more in all.
        let four = |neighbors| (1..=4).map(|id| of(id, "a", neighbors)).collect::<String>();
        assert!(signatures(four(one) + &four(two)).is_ok());
        for (text, expected) in [
            (four(one) + &of(5, "a", ""), "'tcp-ao': neighbour 192.0.2.1: expected 1 to 4 keys"),
            (of(1, "a", two) + &of(1, "b", ""), "neighbour 192.0.2.2: two keys have the send-id 1"),
            (of(1, "a", "neighbors = ['192.0.2.3']"), "5:1: 'neighbors': 192.0.2.3 is no neighb"),
            (of(1, "a", "neighbors = []"), "5:1: 'neighbors': expected one or more; without"),
            (of(1, "a", "neighbors = ['x']"), "5:1: 'neighbors': 'x': invalid IP address"),
        ] {
            let error = signatures(text).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let file = Written::new("open", b"hush");
        let text = format!("password-file = '{}'", file.path());
        for mode in [0o644, 0o602, 0o601] {
            file.permit(mode);
            let error = parse(&text).expect_err("too open");
            assert!(error.contains(&format!(" (mode {mode:o}); run: chmod o= /")), "{error}");
        }
        file.permit(0o600);
        assert_eq!(parse(&text), Ok(md5("hush")));
    }

    #[test]
    fn secrets_in_the_table_itself_are_noted() {
        let file = Written::new("noted", b"hush");
        let key = "[[tcp-ao]]\nsend-id = 1\nalgorithm = 'hmac-sha-1-96'\n";
        let other_key = key.replace('1', "2").replace("sha-2", "sha-1");
        let of_file = format!("key-file = '{}'\n", file.path());
        let cases = [
            (String::new(), false),
            ("password = 'hush'".to_owned(), true),
            (format!("password-file = '{}'", file.path()), false),
            (format!("{key}{of_file}"), false),
            (format!("{key}key = 'hush'"), true),
            (format!("{key}key = 'hush'\n{other_key}{of_file}"), true),
        ];
        for (text, expected) in cases {
            let (_, has_secret) = read_all(&text).expect("it is valid");
            assert_eq!(has_secret, expected, "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_without_the_secret() {
        let [empty, long] = [("empty", 0), ("long", TCP_KEY_BYTES_MAX + 1)]
            .map(|(name, len)| Written::new(name, &vec![b'7'; len]));
        let full = "[[tcp-ao]]\nsend-id = 1\nalgorithm = 'hmac-sha-1-96'\nkey = 'hush'";
        let cases = [
            ("password = 777".to_owned(), "1:1: 'password': expected a string"),
            ("password = ''".to_owned(), "1:1: 'password': the secret is empty or too long"),
            (format!("password = '{}'", "7".repeat(81)), "expected 1 to 80 bytes"),
            ("password-file = '/nowhere'".to_owned(), "1:1: 'password-file': cannot read '/nowh"),
            (format!("password-file = '{}'", empty.path()), "the secret is empty or too long"),
            (format!("password-file = '{}'", long.path()), "the secret is empty or too long"),
            ("password = 'hush'\npassword-file = '/x'".to_owned(), "2:1: 'password-file': 'passw"),
            (format!("password = 'hush'\n{full}"), "'tcp-ao': a password (TCP MD5) excludes it"),
            (format!("{full}\n{full}"), "neighbour 192.0.2.1: two keys have the send-id 1"),
            ("tcp-ao = []".to_owned(), "1:1: 'tcp-ao': expected 1 to 4 keys"),
            ("tcp-ao = 7".to_owned(), "1:1: 'tcp-ao': expected a list of tables"),
            ("[[tcp-ao]]\nkey = 'hush'".to_owned(), "the key has no 'send-id'"),
            ("[[tcp-ao]]\nsend-id = 256".to_owned(), "'send-id': expected a number from 0 to 255"),
            ("[[tcp-ao]]\nsend-id = 1".to_owned(), "the key has no 'algorithm'; expected one of"),
            (full.replace("sha-1-96", "md5"), "3:1: 'algorithm': 'hmac-md5': expected one of hmac"),
            (full.replace("key", "kye"), "the key has no 'key' or 'key-file'"),
            (full.replace("'hush'", "777"), "4:1: 'key': expected a string"),
            (format!("{full}\nkeyy = 'hush'"), "5:1: unknown key 'keyy'; did you mean 'key'?"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains("hush") && !error.contains("777"), "{error}");
        }
    }
}
