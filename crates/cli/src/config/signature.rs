//! How BGP sessions are signed: settings in the table `[evpn]`, with secrets there or in files of
//! their own. No error shows a secret.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;

use towpath_gateway::control::fields::{Fields, Wrong};
use towpath_io::socket::{AoAlgorithm, AoKey, KeyChain, Secret, Signature, TCP_KEY_BYTES_MAX};

/// Permissions of users that are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;
/// All permissions, without the type of the file.
const PERMISSIONS: u32 = 0o7777;

/// What a table says about signatures.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Signed {
    pub(crate) signature: Option<Signature>,
    /// A secret is in the table, not in a file of its own.
    pub(crate) has_secret: bool,
}

/// Takes what signs the sessions from the table.
pub(crate) fn of_table(evpn: &mut Fields) -> Result<Signed, Wrong> {
    let mut signed = Signed::default();
    let password = secret(evpn, "password", "password-file", &mut signed)?;
    if !evpn.has("tcp-ao") {
        signed.signature = password.map(Signature::Md5);
        return Ok(signed);
    }
    let wrong = |evpn: &Fields, why: &str| evpn.wrong("tcp-ao", format!("'tcp-ao': {why}"));
    if password.is_some() {
        return Err(wrong(evpn, "a password (TCP MD5) excludes it"));
    }
    let keys = evpn.all("tcp-ao")?.into_iter().map(|fields| key(fields, &mut signed));
    let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
    let chain = KeyChain::new(keys).map_err(|error| wrong(evpn, &error.to_string()))?;
    signed.signature = Some(Signature::Ao(chain));
    Ok(signed)
}

/// Returns the permissions of a file of which users that are neither its owner nor in its group
/// have some.
pub(crate) fn others_may(file: &File) -> io::Result<Option<u32>> {
    let mode = file.metadata()?.permissions().mode() & PERMISSIONS;
    Ok((mode & OTHERS != 0).then_some(mode))
}

/// Parses a key of TCP-AO.
fn key(mut fields: Fields, signed: &mut Signed) -> Result<AoKey, Wrong> {
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
    let secret = secret(&mut fields, "key", "key-file", signed)?;
    let secret = secret.ok_or_else(|| fields.all_wrong("the key has no 'key' or 'key-file'"))?;
    fields.finish()?;
    Ok(AoKey { send_id, recv_id, algorithm, secret })
}

/// Takes a secret from the field `name`, or from the file that the field `file` names.
fn secret(
    fields: &mut Fields,
    name: &'static str,
    file: &'static str,
    signed: &mut Signed,
) -> Result<Option<Secret>, Wrong> {
    let in_table = fields.secret(name)?;
    signed.has_secret |= in_table.is_some();
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
    use std::path::PathBuf;

    use crate::config::document::Document;

    fn read_all(text: &str) -> Result<Signed, String> {
        let (document, mut fields) = Document::read(text)?;
        of_table(&mut fields)
            .and_then(|signed| fields.finish().map(|()| signed))
            .map_err(|wrong| document.explain(&wrong))
    }

    fn parse(text: &str) -> Result<Option<Signature>, String> {
        read_all(text).map(|signed| signed.signature)
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
        let key = |send_id, recv_id, algorithm, secret: &str| {
            let secret = Secret::new(secret).expect("short");
            AoKey { send_id, recv_id, algorithm, secret }
        };
        let keys = vec![
            key(7, 7, AoAlgorithm::HmacSha1, "new"),
            key(0, 255, AoAlgorithm::Aes128Cmac, "a b \n"),
        ];
        let chain = KeyChain::new(keys).expect("they differ");
        assert_eq!(parse(&text), Ok(Some(Signature::Ao(chain))));
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
            let signed = read_all(&text).expect("it is valid");
            assert_eq!(signed.has_secret, expected, "{text}");
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
            (format!("{full}\n{full}"), "'tcp-ao': two keys have the send-id 1"),
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
