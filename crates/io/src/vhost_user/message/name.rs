//! Names of requests, for messages to users.

use super::code;

/// The protocol's name of a request, or a phrase for any unknown request.
pub fn name(code: u32) -> &'static str {
    match code {
        code::GET_FEATURES => "GET_FEATURES",
        code::SET_FEATURES => "SET_FEATURES",
        code::SET_OWNER => "SET_OWNER",
        code::RESET_OWNER => "RESET_OWNER",
        code::SET_MEM_TABLE => "SET_MEM_TABLE",
        code::SET_LOG_BASE => "SET_LOG_BASE",
        code::SET_LOG_FD => "SET_LOG_FD",
        code::SET_VRING_NUM => "SET_VRING_NUM",
        code::SET_VRING_ADDR => "SET_VRING_ADDR",
        code::SET_VRING_BASE => "SET_VRING_BASE",
        code::GET_VRING_BASE => "GET_VRING_BASE",
        code::SET_VRING_KICK => "SET_VRING_KICK",
        code::SET_VRING_CALL => "SET_VRING_CALL",
        code::SET_VRING_ERR => "SET_VRING_ERR",
        code::GET_PROTOCOL_FEATURES => "GET_PROTOCOL_FEATURES",
        code::SET_PROTOCOL_FEATURES => "SET_PROTOCOL_FEATURES",
        code::GET_QUEUE_NUM => "GET_QUEUE_NUM",
        code::SET_VRING_ENABLE => "SET_VRING_ENABLE",
        code::SEND_RARP => "SEND_RARP",
        code::NET_SET_MTU => "NET_SET_MTU",
        code::SET_BACKEND_REQ_FD => "SET_BACKEND_REQ_FD",
        code::GET_CONFIG => "GET_CONFIG",
        code::SET_CONFIG => "SET_CONFIG",
        code::GET_INFLIGHT_FD => "GET_INFLIGHT_FD",
        code::SET_INFLIGHT_FD => "SET_INFLIGHT_FD",
        code::RESET_DEVICE => "RESET_DEVICE",
        code::GET_MAX_MEM_SLOTS => "GET_MAX_MEM_SLOTS",
        code::ADD_MEM_REG => "ADD_MEM_REG",
        code::REM_MEM_REG => "REM_MEM_REG",
        code::SET_STATUS => "SET_STATUS",
        code::GET_STATUS => "GET_STATUS",
        _ => "an unknown request",
    }
}
