//! Handles, structures and callbacks, each as long as UCX 1.12 has it.

use crate::ucs_status_t;
use crate::{UCP_ENTITY_NAME_MAX, UCS_CPU_SETSIZE};
use libc::{sockaddr, sockaddr_storage, socklen_t};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::marker::{PhantomData, PhantomPinned};

/// Types that only UCX can look into: neither `Send` nor `Sync` nor movable.
macro_rules! opaque {
    ($($(#[$about:meta])* $name:ident)*) => {$(
        $(#[$about])*
        #[repr(C)]
        pub struct $name {
            _data: (),
            _only_behind_a_pointer: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque! {
    /// Behind [`ucp_context_h`].
    ucp_context
    /// Behind [`ucp_worker_h`].
    ucp_worker
    /// Behind [`ucp_ep_h`].
    ucp_ep
    /// Behind [`ucp_mem_h`].
    ucp_mem
    /// Behind [`ucp_rkey_h`].
    ucp_rkey
    /// Behind [`ucp_conn_request_h`].
    ucp_conn_request
    /// Behind [`ucp_tag_message_h`].
    ucp_recv_desc
    /// UCX's settings, as read from the environment.
    ucp_config_t
    /// A worker's address: bytes to be sent to whoever wants to reach the worker.
    ucp_address_t
}

pub type ucp_context_h = *mut ucp_context;
pub type ucp_worker_h = *mut ucp_worker;
pub type ucp_ep_h = *mut ucp_ep;
pub type ucp_mem_h = *mut ucp_mem;
pub type ucp_rkey_h = *mut ucp_rkey;
pub type ucp_conn_request_h = *mut ucp_conn_request;
pub type ucp_tag_message_h = *mut ucp_recv_desc;

pub type ucp_tag_t = u64;
pub type ucp_datatype_t = u64;

// C enumerations: unsigned integers as wide as `int`.
pub type ucs_thread_mode_t = c_uint;
pub type ucs_memory_type_t = c_uint;
pub type ucp_err_handling_mode_t = c_uint;
pub type ucp_atomic_op_t = c_uint;

pub type ucp_request_init_callback_t = Option<unsafe extern "C" fn(request: *mut c_void)>;
pub type ucp_request_cleanup_callback_t = Option<unsafe extern "C" fn(request: *mut c_void)>;
pub type ucp_send_nbx_callback_t = Option<
    unsafe extern "C" fn(request: *mut c_void, status: ucs_status_t, user_data: *mut c_void),
>;
pub type ucp_tag_recv_nbx_callback_t = Option<
    unsafe extern "C" fn(
        request: *mut c_void,
        status: ucs_status_t,
        tag_info: *const ucp_tag_recv_info_t,
        user_data: *mut c_void,
    ),
>;
pub type ucp_stream_recv_nbx_callback_t = Option<
    unsafe extern "C" fn(
        request: *mut c_void,
        status: ucs_status_t,
        length: usize,
        user_data: *mut c_void,
    ),
>;
pub type ucp_am_recv_data_nbx_callback_t = Option<
    unsafe extern "C" fn(
        request: *mut c_void,
        status: ucs_status_t,
        length: usize,
        user_data: *mut c_void,
    ),
>;
pub type ucp_am_recv_callback_t = Option<
    unsafe extern "C" fn(
        arg: *mut c_void,
        header: *const c_void,
        header_length: usize,
        data: *mut c_void,
        length: usize,
        param: *const ucp_am_recv_param_t,
    ) -> ucs_status_t,
>;
pub type ucp_err_handler_cb_t =
    Option<unsafe extern "C" fn(arg: *mut c_void, ep: ucp_ep_h, status: ucs_status_t)>;

/// A set of cores, for [`ucp_worker_params_t::cpu_mask`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucs_cpu_set_t {
    pub ucs_bits: [c_ulong; UCS_CPU_SETSIZE / c_ulong::BITS as usize],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucs_sock_addr_t {
    pub addr: *const sockaddr,
    pub addrlen: socklen_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_lib_attr_t {
    pub field_mask: u64,
    pub max_thread_level: ucs_thread_mode_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_params_t {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: ucp_request_init_callback_t,
    pub request_cleanup: ucp_request_cleanup_callback_t,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_context_attr_t {
    pub field_mask: u64,
    pub request_size: usize,
    pub thread_mode: ucs_thread_mode_t,
    pub memory_types: u64,
    pub name: [c_char; UCP_ENTITY_NAME_MAX],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_worker_params_t {
    pub field_mask: u64,
    pub thread_mode: ucs_thread_mode_t,
    pub cpu_mask: ucs_cpu_set_t,
    pub events: c_uint,
    pub user_data: *mut c_void,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: *const c_char,
    pub am_alignment: usize,
    pub client_id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_worker_attr_t {
    pub field_mask: u64,
    pub thread_mode: ucs_thread_mode_t,
    pub address_flags: u32,
    pub address: *mut ucp_address_t,
    pub address_length: usize,
    pub max_am_header: usize,
    pub name: [c_char; UCP_ENTITY_NAME_MAX],
    pub max_debug_string: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_worker_address_attr_t {
    pub field_mask: u64,
    pub worker_uid: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_err_handler_t {
    pub cb: ucp_err_handler_cb_t,
    pub arg: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_ep_params_t {
    pub field_mask: u64,
    pub address: *const ucp_address_t,
    pub err_mode: ucp_err_handling_mode_t,
    pub err_handler: ucp_err_handler_t,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub sockaddr: ucs_sock_addr_t,
    pub conn_request: ucp_conn_request_h,
    pub name: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ucp_ep_attr_t {
    pub field_mask: u64,
    pub name: [c_char; UCP_ENTITY_NAME_MAX],
    pub local_sockaddr: sockaddr_storage,
    pub remote_sockaddr: sockaddr_storage,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_mem_map_params_t {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub flags: c_uint,
    pub prot: c_uint,
    pub memory_type: ucs_memory_type_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_mem_attr_t {
    pub field_mask: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub mem_type: ucs_memory_type_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_tag_recv_info_t {
    pub sender_tag: ucp_tag_t,
    pub length: usize,
}

/// [`ucp_request_param_t::cb`]: the member that belongs to the function called.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ucp_request_param_cb {
    pub send: ucp_send_nbx_callback_t,
    pub recv: ucp_tag_recv_nbx_callback_t,
    pub recv_stream: ucp_stream_recv_nbx_callback_t,
    pub recv_am: ucp_am_recv_data_nbx_callback_t,
}

/// [`ucp_request_param_t::recv_info`]: where an operation that ends at once leaves what it received.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ucp_request_param_recv_info {
    pub length: *mut usize,
    pub tag_info: *mut ucp_tag_recv_info_t,
}

/// How to run one operation; only the fields named in `op_attr_mask` are read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ucp_request_param_t {
    pub op_attr_mask: u32,
    pub flags: u32,
    pub request: *mut c_void,
    pub cb: ucp_request_param_cb,
    pub datatype: ucp_datatype_t,
    pub user_data: *mut c_void,
    pub reply_buffer: *mut c_void,
    pub memory_type: ucs_memory_type_t,
    pub recv_info: ucp_request_param_recv_info,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_request_attr_t {
    pub field_mask: u64,
    pub debug_string: *mut c_char,
    pub debug_string_size: usize,
    pub status: ucs_status_t,
    pub mem_type: ucs_memory_type_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_dt_iov_t {
    pub buffer: *mut c_void,
    pub length: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_am_handler_param_t {
    pub field_mask: u64,
    pub id: c_uint,
    pub flags: u32,
    pub cb: ucp_am_recv_callback_t,
    pub arg: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ucp_am_recv_param_t {
    pub recv_attr: u64,
    pub reply_ep: ucp_ep_h,
}

/// `ZEROED`, and `Default` with the same value, for structures that the caller fills.
macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl $name {
            /// All bytes zero: no field is set.
            // SAFETY: every field is an integer, a raw pointer, an optional function or an array, a
            // structure or a union of these, and zero is a value of each.
            pub const ZEROED: Self = unsafe { std::mem::zeroed() };
        }

        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::ZEROED
            }
        }
    )*};
}

zeroed! {
    ucs_cpu_set_t
    ucs_sock_addr_t
    ucp_lib_attr_t
    ucp_params_t
    ucp_context_attr_t
    ucp_worker_params_t
    ucp_worker_attr_t
    ucp_worker_address_attr_t
    ucp_err_handler_t
    ucp_ep_params_t
    ucp_ep_attr_t
    ucp_mem_map_params_t
    ucp_mem_attr_t
    ucp_tag_recv_info_t
    ucp_request_param_t
    ucp_request_attr_t
    ucp_dt_iov_t
    ucp_am_handler_param_t
    ucp_am_recv_param_t
}

/// The datatype of a run of elements of `elem_size` bytes each. C's macro of that name.
#[inline]
#[must_use]
pub const fn ucp_dt_make_contig(elem_size: usize) -> ucp_datatype_t {
    ((elem_size as ucp_datatype_t) << crate::UCP_DATATYPE_SHIFT) | crate::UCP_DATATYPE_CONTIG
}

/// The datatype of an array of [`ucp_dt_iov_t`]. C's macro of that name.
#[inline]
#[must_use]
pub const fn ucp_dt_make_iov() -> ucp_datatype_t {
    crate::UCP_DATATYPE_IOV
}
