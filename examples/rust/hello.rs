// A hello server and its client in Rust, over the C interface of tern (<tern/tern.h>), in one file:
//
//   rustc --edition=2021 -O -L LIBDIR hello.rs     (LIBDIR has libtern_c.so; add -C link-arg=-Wl,-rpath,LIBDIR to find it)
//   ./hello server [TRANSPORT [HOST:PORT]]         default: shm 127.0.0.1:31850; port 0 takes any free port, which it prints
//   ./hello client TRANSPORT URI [WHO]             asks a hello server of any language, and prints the answer
//
// Functions that tern calls must not panic: they would unwind into C.
use std::ffi::{CStr, CString};
use std::os::raw::c_void;
use std::{mem, ptr, slice};

const HELLO: u16 = 1; // a request type: client and server agree on it
const FOREVER: i64 = i64::MAX;
const OK: i32 = 0;

/// The parts of <tern/tern.h> that this program uses.
mod c {
    use std::os::raw::{c_char, c_void};

    #[repr(C)]
    pub struct Nexus([u8; 0]);
    #[repr(C)]
    pub struct Endpoint([u8; 0]);
    #[repr(C)]
    pub struct MsgBuf([u8; 0]);
    #[repr(C)]
    pub struct Request([u8; 0]);

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Status {
        pub code: i32,
        pub message: *const c_char,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Session {
        pub name: u64,
    }
    #[repr(C)]
    pub struct Completion {
        pub status: Status,
        pub request: *mut MsgBuf,
        pub response: *mut MsgBuf,
        pub app_code: u16,
    }
    #[repr(C)]
    pub struct EndpointOptions {
        pub size: usize,
        pub transport: *const c_char,
        pub transport_options: *const c_char,
        pub receive_budget_bytes: usize,
        pub response_budget_bytes: usize,
        pub memory_limit_bytes: usize,
        pub spin_ns: i64,
        pub report_delay_ns: i64,
        pub queue_limit: u32,
        pub server_sessions_max: u32,
        pub server_sessions_per_peer_max: u32,
        pub credit_limit: u32,
        pub wait: i32,
        pub congestion_control: i32,
        pub endpoint_id: u16,
        pub no_huge_pages: u8,
        pub giant_pages: u8,
        pub reserved: u32,
    }

    pub type Handler = extern "C" fn(*mut c_void, *mut Request);
    pub type Continuation = extern "C" fn(*mut c_void, *mut Completion);

    #[link(name = "tern_c")]
    extern "C" {
        pub fn tern_nexus_create(uri: *const c_char, options: *const c_void, nexus: *mut *mut Nexus) -> Status;
        pub fn tern_nexus_destroy(nexus: *mut Nexus) -> Status;
        pub fn tern_nexus_uri(nexus: *const Nexus) -> *const c_char;
        pub fn tern_endpoint_create(nexus: *mut Nexus, options: *const EndpointOptions, endpoint: *mut *mut Endpoint) -> Status;
        pub fn tern_endpoint_destroy(endpoint: *mut Endpoint) -> Status;
        pub fn tern_endpoint_on_request(
            endpoint: *mut Endpoint, request_type: u16, handler: Handler, context: *mut c_void, options: *const c_void,
        ) -> Status;
        pub fn tern_endpoint_run(endpoint: *mut Endpoint, duration_ns: i64) -> Status;
        pub fn tern_endpoint_stop(endpoint: *mut Endpoint) -> Status;
        pub fn tern_request_data(request: *const Request) -> *const u8;
        pub fn tern_request_length(request: *const Request) -> usize;
        pub fn tern_request_response(request: *mut Request, len_bytes: usize, data: *mut *mut u8) -> Status;
        pub fn tern_request_respond(request: *mut Request) -> Status;
        pub fn tern_request_fail(request: *mut Request, app_code: u16) -> Status;
        pub fn tern_session_open(
            endpoint: *mut Endpoint, uri: *const c_char, options: *const c_void, session: *mut Session,
        ) -> Status;
        pub fn tern_msgbuf_alloc(endpoint: *mut Endpoint, len_bytes: usize, buffer: *mut *mut MsgBuf) -> Status;
        pub fn tern_msgbuf_free(buffer: *mut MsgBuf) -> Status;
        pub fn tern_msgbuf_data(buffer: *mut MsgBuf) -> *mut u8;
        pub fn tern_msgbuf_length(buffer: *const MsgBuf) -> usize;
        pub fn tern_call_start(
            endpoint: *mut Endpoint, session: Session, request_type: u16, request: *mut MsgBuf, response: *mut MsgBuf,
            then: Continuation, context: *mut c_void, options: *const c_void, call: *mut u64,
        ) -> Status;
    }
}

/// The message of a status that is not OK.
fn check(what: &str, status: c::Status) -> Result<(), String> {
    match status.code {
        OK => Ok(()),
        // A message is valid for ever.
        _ => Err(format!("{what}: {}", unsafe { CStr::from_ptr(status.message) }.to_string_lossy())),
    }
}

fn text(words: &str) -> Result<CString, String> {
    CString::new(words).map_err(|_| "a zero byte in an argument".to_string())
}

struct Nexus(*mut c::Nexus);

impl Nexus {
    fn new(listen: &str) -> Result<Nexus, String> {
        let mut nexus = ptr::null_mut();
        check("no nexus", unsafe { c::tern_nexus_create(text(listen)?.as_ptr(), ptr::null(), &mut nexus) })?;
        Ok(Nexus(nexus))
    }
}
impl Drop for Nexus {
    fn drop(&mut self) {
        unsafe { c::tern_nexus_destroy(self.0) };
    }
}

/// Must be destroyed before its Nexus.
struct Endpoint<'a>(*mut c::Endpoint, std::marker::PhantomData<&'a Nexus>);

impl<'a> Endpoint<'a> {
    fn new(nexus: &'a Nexus, transport: &str) -> Result<Endpoint<'a>, String> {
        let transport = text(transport)?;
        // Zero in a field is its default.
        let mut options: c::EndpointOptions = unsafe { mem::zeroed() };
        options.size = mem::size_of::<c::EndpointOptions>();
        options.transport = transport.as_ptr();
        let mut endpoint = ptr::null_mut();
        check("no endpoint", unsafe { c::tern_endpoint_create(nexus.0, &options, &mut endpoint) })?;
        Ok(Endpoint(endpoint, std::marker::PhantomData))
    }

    fn alloc(&self, length: usize) -> Result<*mut c::MsgBuf, String> {
        let mut buffer = ptr::null_mut();
        check("no buffer", unsafe { c::tern_msgbuf_alloc(self.0, length, &mut buffer) })?;
        Ok(buffer)
    }

    fn run(&self) -> Result<(), String> {
        check("the loop has ended", unsafe { c::tern_endpoint_run(self.0, FOREVER) })
    }
}
impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        unsafe { c::tern_endpoint_destroy(self.0) };
    }
}

extern "C" fn answer(_context: *mut c_void, request: *mut c::Request) {
    let greeting = b"hello, ";
    unsafe {
        let who = c::tern_request_length(request);
        let mut space = ptr::null_mut();
        if c::tern_request_response(request, greeting.len() + who, &mut space).code != OK {
            c::tern_request_fail(request, 1);
            return;
        }
        ptr::copy_nonoverlapping(greeting.as_ptr(), space, greeting.len());
        ptr::copy_nonoverlapping(c::tern_request_data(request), space.add(greeting.len()), who);
        c::tern_request_respond(request);
    }
}

fn serve(transport: &str, address: &str) -> Result<(), String> {
    let nexus = Nexus::new(&format!("tern://{address}"))?;
    let endpoint = Endpoint::new(&nexus, transport)?;
    check("no handler", unsafe { c::tern_endpoint_on_request(endpoint.0, HELLO, answer, ptr::null_mut(), ptr::null()) })?;
    let uri = unsafe { CStr::from_ptr(c::tern_nexus_uri(nexus.0)) }.to_string_lossy();
    println!("serving over {transport} at {uri}");
    endpoint.run()
}

/// The continuation of a call writes its outcome here.
struct Call {
    endpoint: *mut c::Endpoint,
    status: Option<c::Status>,
    answer: Vec<u8>,
}

/// Runs once, whatever happens, and owns both buffers.
extern "C" fn done(context: *mut c_void, completion: *mut c::Completion) {
    unsafe {
        let call = &mut *(context as *mut Call);
        let completion = &*completion;
        call.status = Some(completion.status);
        if completion.status.code == OK {
            let bytes = c::tern_msgbuf_data(completion.response);
            call.answer.extend_from_slice(slice::from_raw_parts(bytes, c::tern_msgbuf_length(completion.response)));
        }
        c::tern_msgbuf_free(completion.request);
        c::tern_msgbuf_free(completion.response);
        c::tern_endpoint_stop(call.endpoint);
    }
}

fn ask(transport: &str, uri: &str, who: &str) -> Result<(), String> {
    let is_local = uri.starts_with("tern://127.");
    let nexus = Nexus::new(if is_local { "tern://127.0.0.1:0" } else { "tern://0.0.0.0:0" })?;
    // Outlives the endpoint, and with it the call.
    let mut call = Call { endpoint: ptr::null_mut(), status: None, answer: Vec::new() };
    let endpoint = Endpoint::new(&nexus, transport)?;
    call.endpoint = endpoint.0;
    let mut session = c::Session { name: 0 };
    check("no session", unsafe { c::tern_session_open(endpoint.0, text(uri)?.as_ptr(), ptr::null(), &mut session) })?;
    let request = endpoint.alloc(who.len())?;
    let response = endpoint.alloc(64)?;
    unsafe {
        ptr::copy_nonoverlapping(who.as_ptr(), c::tern_msgbuf_data(request), who.len());
        let context = &mut call as *mut Call as *mut c_void;
        let started = c::tern_call_start(
            endpoint.0, session, HELLO, request, response, done, context, ptr::null(), ptr::null_mut(),
        );
        check("the call was refused", started)?;
    }
    endpoint.run()?;
    drop(endpoint);
    check("no answer", call.status.ok_or("the loop ended before the call")?)?;
    println!("{}", String::from_utf8_lossy(&call.answer));
    Ok(())
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let word = |index: usize, default: &'static str| words.get(index).map_or(default, |found| found.as_str());
    let outcome = match word(1, "") {
        "server" => serve(word(2, "shm"), word(3, "127.0.0.1:31850")),
        "client" if words.len() > 3 => ask(word(2, "shm"), word(3, ""), word(4, "world")),
        _ => Err("usage: hello server [TRANSPORT [HOST:PORT]] | hello client TRANSPORT URI [WHO]".to_string()),
    };
    if let Err(problem) = outcome {
        eprintln!("hello: {problem}");
        std::process::exit(1);
    }
}
