//! Requests that front ends send, and malformed ones.

use super::*;
use proptest::prelude::*;
use std::fs::File;
use std::io::{PipeReader, Read};

/// Requests without descriptors, and the payload length of each.
const PLAIN: [(u32, usize); 20] = [
    (code::GET_FEATURES, 0),
    (code::SET_FEATURES, 8),
    (code::SET_OWNER, 0),
    (code::RESET_OWNER, 0),
    (code::SET_VRING_NUM, 8),
    (code::SET_VRING_ADDR, 40),
    (code::SET_VRING_BASE, 8),
    (code::GET_VRING_BASE, 8),
    (code::GET_PROTOCOL_FEATURES, 0),
    (code::SET_PROTOCOL_FEATURES, 8),
    (code::GET_QUEUE_NUM, 0),
    (code::SET_VRING_ENABLE, 8),
    (code::SEND_RARP, 8),
    (code::NET_SET_MTU, 8),
    (code::GET_INFLIGHT_FD, 24),
    (code::RESET_DEVICE, 0),
    (code::GET_MAX_MEM_SLOTS, 0),
    (code::SET_STATUS, 8),
    (code::GET_STATUS, 0),
    (code::GET_INFLIGHT_FD, 20),
];
/// Requests with one descriptor.
const WITH_DESCRIPTOR: [(u32, usize); 7] = [
    (code::SET_LOG_BASE, 16),
    (code::SET_LOG_FD, 0),
    (code::SET_VRING_KICK, 8),
    (code::SET_VRING_CALL, 8),
    (code::SET_VRING_ERR, 8),
    (code::SET_INFLIGHT_FD, 24),
    (code::ADD_MEM_REG, 40),
];

fn file() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn files(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| file()).collect()
}

/// A payload in which every field that must not be zero is one.
fn payload(code: u32, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    if code == code::ADD_MEM_REG {
        payload[16] = 1;
    }
    payload
}

fn region(values: [u64; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = (regions.len() as u64).to_ne_bytes().to_vec();
    regions.iter().for_each(|values| payload.extend(region(*values)));
    payload
}

fn config(offset: u32, bytes: u32, flags: u32, content: &[u8]) -> Vec<u8> {
    let mut payload: Vec<u8> = [offset, bytes, flags].map(u32::to_ne_bytes).concat();
    payload.extend(content);
    payload
}

fn header(words: [u32; 3]) -> Result<Header, HeaderError> {
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(&words.map(u32::to_ne_bytes).concat());
    Header::parse(&bytes)
}

#[test]
fn headers_say_what_follows() {
    let expected = Header { code: 5, need_reply: true, payload_bytes: 40 };
    assert_eq!(header([5, VERSION | FLAG_NEED_REPLY, 40]), Ok(expected));
    assert_eq!(header([5, 2, 0]), Err(HeaderError::Version(2)));
    assert_eq!(header([5, VERSION | FLAG_REPLY, 0]), Err(HeaderError::Reply));
    let longest = PAYLOAD_BYTES_MAX as u32;
    assert!(header([5, VERSION, longest]).is_ok());
    assert_eq!(header([5, VERSION, longest + 1]), Err(HeaderError::TooLong(longest + 1)));
    assert_eq!(header([5, VERSION, u32::MAX]), Err(HeaderError::TooLong(u32::MAX)));
}

/// Each request is accepted only with its own payload length and its own number of descriptors.
#[test]
fn lengths_and_descriptors_are_exact() {
    let all = PLAIN.map(|(code, bytes)| (code, bytes, 0)).into_iter();
    let all = all.chain(WITH_DESCRIPTOR.map(|(code, bytes)| (code, bytes, 1)));
    for (code, bytes, count) in all {
        let content = payload(code, bytes);
        let parsed = Request::parse(code, &content, files(count));
        assert!(parsed.is_ok(), "request {code}: {parsed:?}");
        for wrong in [bytes.wrapping_sub(1), bytes + 1, bytes + 8, PAYLOAD_BYTES_MAX] {
            if wrong > PAYLOAD_BYTES_MAX {
                continue;
            }
            let error = Request::parse(code, &payload(0, wrong), files(count)).unwrap_err();
            assert_eq!(error, RequestError::Length { code, bytes: wrong });
        }
        for wrong in [count.wrapping_sub(1), count + 1, DESCRIPTORS_MAX] {
            if wrong > DESCRIPTORS_MAX {
                continue;
            }
            let error = Request::parse(code, &content, files(wrong)).unwrap_err();
            assert_eq!(error, RequestError::Descriptors { code, count: wrong });
        }
    }
}

#[test]
fn memory_tables_have_a_descriptor_for_each_region() {
    let regions = [[0, 0x1000, 0x7000, 0], [0x1000, 0x2000, 0x9000, 0x1000]];
    let parsed = Request::parse(code::SET_MEM_TABLE, &table(&regions), files(2)).unwrap();
    let Request::SetMemTable(parsed) = parsed else { panic!("{parsed:?}") };
    let second = RegionLayout {
        guest_address: 0x1000,
        bytes: 0x2000,
        user_address: 0x9000,
        file_offset: 0x1000,
    };
    assert_eq!(parsed[1].0, second);
    let wrong = |payload: &[u8], count| {
        Request::parse(code::SET_MEM_TABLE, payload, files(count)).unwrap_err()
    };
    let code = code::SET_MEM_TABLE;
    assert_eq!(wrong(&table(&regions), 1), RequestError::Descriptors { code, count: 1 });
    assert_eq!(wrong(&table(&regions), 3), RequestError::Descriptors { code, count: 3 });
    let mut fewer = table(&regions);
    fewer[0] = 1;
    assert_eq!(wrong(&fewer, 1), RequestError::Length { code, bytes: 72 });
    assert_eq!(wrong(&table(&regions)[..71], 2), RequestError::Length { code, bytes: 71 });
    assert_eq!(wrong(&[0; 7], 0), RequestError::Length { code, bytes: 7 });
    let many = [[0, 1, 0, 0]; TABLE_REGIONS_MAX + 1];
    assert_eq!(wrong(&table(&many), TABLE_REGIONS_MAX + 1), RequestError::Value(code));
    assert!(Request::parse(code, &table(&[]), Vec::new()).is_ok(), "no memory is a table too");
}

/// Regions without a byte, or that wrap around in any of their three address spaces.
#[test]
fn impossible_regions_are_refused() {
    const END: u64 = u64::MAX - 0xff;
    let wrong = [[0, 0, 0, 0], [END, 0x100, 0, 0], [0, 0x100, END, 0], [0, 0x100, 0, END]];
    for values in wrong {
        let parsed = Request::parse(code::SET_MEM_TABLE, &table(&[values]), files(1));
        assert_eq!(parsed.unwrap_err(), RequestError::Value(code::SET_MEM_TABLE));
        let single = [vec![0; 8], region(values)].concat();
        let parsed = Request::parse(code::ADD_MEM_REG, &single, files(1));
        assert_eq!(parsed.unwrap_err(), RequestError::Value(code::ADD_MEM_REG));
    }
}

/// Some front ends send a descriptor with the removal of a region: it is closed, not used.
#[test]
fn a_removed_region_may_come_with_a_descriptor() {
    let payload = payload(code::ADD_MEM_REG, 40);
    for count in [0, 1] {
        let (reader, descriptors) = watched(count);
        let parsed = Request::parse(code::REM_MEM_REG, &payload, descriptors);
        assert!(matches!(parsed, Ok(Request::RemMemReg(_))));
        assert_closed(reader);
    }
    assert!(Request::parse(code::REM_MEM_REG, &payload, files(2)).is_err());
}

#[test]
fn rings_may_be_without_a_descriptor() {
    for code in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
        let parse = |value: u64, count| Request::parse(code, &value.to_ne_bytes(), files(count));
        use RingRequest::{Call, Error, Kick};
        let parsed = parse(0x103, 0);
        assert!(matches!(parsed, Ok(Request::Ring(3, Kick(None) | Call(None) | Error(None)))));
        assert_eq!(parse(0x103, 1).unwrap_err(), RequestError::Descriptors { code, count: 1 });
        assert_eq!(parse(3, 0).unwrap_err(), RequestError::Descriptors { code, count: 0 });
        assert_eq!(parse(0x203, 1).unwrap_err(), RequestError::Value(code));
        assert_eq!(parse(u64::MAX, 1).unwrap_err(), RequestError::Value(code));
    }
}

#[test]
fn values_that_do_not_fit_are_refused() {
    let state = |number: u32| [1, number].map(u32::to_ne_bytes).concat();
    let parse = |code, payload: &[u8]| Request::parse(code, payload, Vec::new());
    assert!(matches!(
        parse(code::SET_VRING_NUM, &state(256)),
        Ok(Request::Ring(1, RingRequest::Size(256)))
    ));
    assert!(parse(code::SET_VRING_NUM, &state(0x1_0000)).is_err());
    assert!(matches!(
        parse(code::SET_VRING_BASE, &state(0x8001_8002)),
        Ok(Request::Ring(1, RingRequest::Base(0x8001_8002)))
    ));
    assert!(matches!(
        parse(code::SET_VRING_ENABLE, &state(1)),
        Ok(Request::Ring(1, RingRequest::Enable(true)))
    ));
    assert!(parse(code::SET_VRING_ENABLE, &state(2)).is_err());
    assert!(parse(code::NET_SET_MTU, &0x1_0000u64.to_ne_bytes()).is_err());
    assert!(parse(code::SET_STATUS, &0x100u64.to_ne_bytes()).is_err());
    let mut addresses = vec![0; 40];
    addresses[4] = 2;
    assert!(parse(code::SET_VRING_ADDR, &addresses).is_err(), "an unknown flag");
    let end = [u64::MAX, 1].map(u64::to_ne_bytes).concat();
    assert!(Request::parse(code::SET_LOG_BASE, &end, files(1)).is_err());
}

#[test]
fn ranges_of_the_configuration_end_within_it() {
    let parse = |code, payload: &[u8]| Request::parse(code, payload, Vec::new());
    let read = parse(code::GET_CONFIG, &config(4, 6, 0, &[0; 6])).unwrap();
    assert!(matches!(read, Request::GetConfig(ConfigRange { offset: 4, bytes: 6 })));
    let written = parse(code::SET_CONFIG, &config(0, 2, 1, &[7, 8])).unwrap();
    assert!(matches!(written, Request::SetConfig(0, bytes, true) if bytes == [7, 8]));
    for (payload, why) in [
        (config(0, 0, 0, &[]), "no bytes"),
        (config(0, 4, 0, &[0; 3]), "fewer bytes than said"),
        (config(0, 4, 0, &[0; 5]), "more bytes than said"),
        (config(255, 2, 0, &[0; 2]), "over the end"),
        (config(u32::MAX, 2, 0, &[0; 2]), "far over the end"),
        (vec![0; 11], "no header"),
    ] {
        assert!(parse(code::GET_CONFIG, &payload).is_err(), "{why}");
    }
    assert!(parse(code::SET_CONFIG, &config(0, 1, 2, &[0])).is_err(), "an unknown flag");
}

#[test]
fn unknown_requests_are_distinguished_from_bad_ones() {
    // Requests for the IOMMU, post-copy and in-band kicks, which are not offered.
    for code in [0, 22, 26, 28, 33, 35, 41, u32::MAX] {
        let parsed = Request::parse(code, &[0; 8], files(1));
        assert_eq!(parsed.unwrap_err(), RequestError::Unknown(code));
    }
}

#[test]
fn descriptors_of_refused_requests_are_closed() {
    for (code, count) in [(code::GET_FEATURES, 3), (code::SET_MEM_TABLE, 8), (99, 1)] {
        let (reader, descriptors) = watched(count);
        assert!(Request::parse(code, &[], descriptors).is_err());
        assert_closed(reader);
    }
}

#[test]
fn replies_are_laid_out_as_requests() {
    let mut bytes = [0; REPLY_BYTES_MAX];
    let number = Reply::Number(0x0102).emit(code::GET_FEATURES, &mut bytes);
    assert_eq!(number[..12], [1, VERSION | FLAG_REPLY, 8].map(u32::to_ne_bytes).concat());
    assert_eq!(number[12..], 0x0102u64.to_ne_bytes());
    let state = Reply::RingState(3, 9).emit(code::GET_VRING_BASE, &mut bytes);
    assert_eq!(state[12..], [3u32, 9].map(u32::to_ne_bytes).concat());
    let reply = Reply::Config(0, vec![5; CONFIG_BYTES_MAX]).emit(code::GET_CONFIG, &mut bytes);
    assert_eq!(reply.len(), REPLY_BYTES_MAX);
    let nothing = Reply::Nothing.emit(code::GET_CONFIG, &mut bytes);
    assert_eq!(nothing.len(), HEADER_BYTES);
    let layout = InflightLayout { bytes: 9, file_offset: 1, queues: 2, queue_size: 256 };
    let reply = Reply::Inflight(layout).emit(code::GET_INFLIGHT_FD, &mut bytes).to_vec();
    let parsed = Request::parse(code::GET_INFLIGHT_FD, &reply[12..], Vec::new()).unwrap();
    assert!(matches!(parsed, Request::GetInflightFd(back) if back == layout));
}

proptest! {
    /// Any input gives a request or an error, and regions never wrap.
    #[test]
    fn any_bytes_are_taken(
        code in 0u32..45,
        payload in proptest::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES_MAX),
        count in 0..=DESCRIPTORS_MAX,
    ) {
        match Request::parse(code, &payload, files(count)) {
            Ok(Request::SetMemTable(table)) => {
                for (region, _) in table {
                    prop_assert!(region.guest_address.checked_add(region.bytes).is_some());
                }
            }
            Ok(Request::GetConfig(range)) => {
                prop_assert!(range.offset + range.bytes <= CONFIG_BYTES_MAX);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Descriptors, and a pipe that ends when all of them are closed.
fn watched(count: usize) -> (PipeReader, Vec<OwnedFd>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let descriptors = (0..count).map(|_| writer.try_clone().unwrap().into()).collect();
    (reader, descriptors)
}

fn assert_closed(mut reader: PipeReader) {
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}
