//! The one file that calls the C library itself: batches of messages with places and errors, the assignment of
//! partitions, and what the safe interface does not show. It decides nothing.
//!
//! Threads: the library may be called from any thread, except that batches must not be taken beside changes of the
//! assignment. So those are calls of [`Fetcher`], which one thread owns; all else are calls of [`Client`].
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka_sys as sys;
use rdkafka_sys::RDKafkaRespErr;

/// The most messages of one batch.
const BATCH: usize = 4096;

/// What the library has to say beside messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    /// The group gives these partitions to this consumer.
    Assigned(Vec<i32>),
    /// The group takes these partitions away; they are not fetched any more.
    Revoked(Vec<i32>),
    /// An error that belongs to no partition.
    Error(Failure),
}

/// An error of the library: a number of Kafka's protocol, or a negative one of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: i32,
    pub(super) text: String,
}

impl Failure {
    fn of(code: RDKafkaRespErr) -> Self {
        // SAFETY: the function takes any code, and returns a static text.
        let text = unsafe { text_of(sys::rd_kafka_err2str(code)) };
        Failure { code: code as i32, text }
    }

    /// Takes an error object over; `None` if it is null, which means that there is none.
    ///
    /// # Safety
    /// `error` is null, or an error object that the caller owns.
    unsafe fn taken(error: *mut sys::rd_kafka_error_t) -> Option<Self> {
        // SAFETY: the caller's promise; a null pointer is asked for its code only, which is 0 then.
        unsafe {
            let code = sys::rd_kafka_error_code(error) as i32;
            let failure = (code != 0).then(|| Failure { code, text: text_of(sys::rd_kafka_error_string(error)) });
            if !error.is_null() {
                sys::rd_kafka_error_destroy(error);
            }
            failure
        }
    }
}

/// What comes out of a batch.
pub(super) enum Taken<'m> {
    /// A message.
    Message(Raw<'m>),
    /// A partition has no message before this offset that was not handed out.
    End(i32, i64),
    /// A partition cannot be read.
    Failed(i32, Failure),
}

/// A message as the library holds it.
#[derive(Clone, Copy)]
pub(super) struct Raw<'m> {
    message: *mut sys::rd_kafka_message_t,
    lives: PhantomData<&'m ()>,
}

impl<'m> Raw<'m> {
    pub(super) fn partition(self) -> i32 {
        // SAFETY: the message lives as long as `'m`.
        unsafe { (*self.message).partition }
    }

    pub(super) fn offset(self) -> i64 {
        // SAFETY: as above.
        unsafe { (*self.message).offset }
    }

    /// The epoch of the partition's leader; -1 if it is not known.
    pub(super) fn leader_epoch(self) -> i32 {
        // SAFETY: as above.
        unsafe { sys::rd_kafka_message_leader_epoch(self.message) }
    }

    /// Milliseconds since 1970; -1 if there is no time.
    pub(super) fn time(self) -> i64 {
        // SAFETY: as above; the kind of the time need not be asked for.
        unsafe { sys::rd_kafka_message_timestamp(self.message, std::ptr::null_mut()) }
    }

    pub(super) fn body(self) -> Option<&'m [u8]> {
        // SAFETY: the library keeps `len` bytes at `payload` as long as the message.
        unsafe { bytes_of((*self.message).payload, (*self.message).len) }
    }

    pub(super) fn key(self) -> Option<&'m [u8]> {
        // SAFETY: the library keeps `key_len` bytes at `key` as long as the message.
        unsafe { bytes_of((*self.message).key, (*self.message).key_len) }
    }

    /// Calls `visit` with the name and the value of each header; a null is an empty value.
    pub(super) fn headers(self, mut visit: impl FnMut(&[u8], &[u8])) {
        let mut headers = std::ptr::null_mut();
        // SAFETY: the message lives; the list that is given stays the message's.
        let code = unsafe { sys::rd_kafka_message_headers(self.message, &mut headers) };
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return;
        }
        for at in 0.. {
            let (mut name, mut value, mut size) = (std::ptr::null(), std::ptr::null(), 0);
            // SAFETY: the list lives as long as the message; an index behind its end gives an error.
            let code = unsafe { sys::rd_kafka_header_get_all(headers, at, &mut name, &mut value, &mut size) };
            if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR || name.is_null() {
                return;
            }
            // SAFETY: the name ends with a NUL; the value has `size` bytes; both live as long as the message.
            unsafe { visit(CStr::from_ptr(name).to_bytes(), bytes_of(value, size).unwrap_or_default()) }
        }
    }
}

/// Bytes of the library.
///
/// # Safety
/// `start` is null, or has `count` bytes that live as long as `'m`.
unsafe fn bytes_of<'m>(start: *const c_void, count: usize) -> Option<&'m [u8]> {
    // SAFETY: the caller's promise.
    (!start.is_null()).then(|| unsafe { std::slice::from_raw_parts(start.cast::<u8>(), count) })
}

/// A text of the library.
///
/// # Safety
/// `text` is null, or ends with a NUL.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What the callbacks write. The library has a pointer to it.
#[derive(Debug, Default)]
struct Calls {
    notices: Mutex<Vec<Notice>>,
    /// The partitions that are fetched.
    fetched: Mutex<BTreeSet<i32>>,
    /// The group has given or taken partitions: meanwhile the library has held back all others.
    was_rebalanced: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A list of partitions of one topic.
struct List(*mut sys::rd_kafka_topic_partition_list_t);

impl List {
    fn new(topic: &CStr, partitions: impl IntoIterator<Item = (i32, i64, i32)>) -> Self {
        // SAFETY: the library copies the topic's name; an element stays where it is until the next one is added.
        unsafe {
            let list = sys::rd_kafka_topic_partition_list_new(8);
            for (partition, offset, leader_epoch) in partitions {
                let element = sys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), partition);
                (*element).offset = offset;
                sys::rd_kafka_topic_partition_set_leader_epoch(element, leader_epoch);
            }
            List(list)
        }
    }

    /// The partitions, each with its offset.
    fn read(&self) -> Vec<(i32, i64)> {
        // SAFETY: the list is this one's, and has `cnt` elements.
        unsafe { elements(self.0) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is this one's.
        unsafe { sys::rd_kafka_topic_partition_list_destroy(self.0) }
    }
}

/// The elements of a list: partitions and offsets.
///
/// # Safety
/// `list` is a list of the library.
unsafe fn elements(list: *const sys::rd_kafka_topic_partition_list_t) -> Vec<(i32, i64)> {
    // SAFETY: the caller's promise; a list has `cnt` elements at `elems`, which may be null if there are none.
    unsafe {
        let count = usize::try_from((*list).cnt).unwrap_or(0);
        (0..count).map(|at| (*list).elems.add(at)).map(|one| ((*one).partition, (*one).offset)).collect()
    }
}

/// A client of the library for one topic. If it has joined a group, it leaves that when it is dropped.
pub(super) struct Client {
    handle: *mut sys::rd_kafka_t,
    topic: CString,
    calls: Box<Calls>,
    /// Whether it does not leave the group.
    is_killed: AtomicBool,
}

// SAFETY: the library's handle may be used by any thread, and what the callbacks write is behind locks.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

/// What a topic is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    /// Changes if the topic is deleted and created again. Empty if the broker has no ids.
    pub(super) id: String,
    pub(super) partitions: Vec<i32>,
}

impl Client {
    /// A client, and what fetches for it. Nothing is connected to before it is asked for something.
    pub(super) fn new(config: &ClientConfig, topic: &str) -> Result<(Arc<Self>, Fetcher), String> {
        let topic = CString::new(topic).map_err(|cause| cause.to_string())?;
        let config = config.create_native_config().map_err(|error| words(&error))?;
        let calls = Box::<Calls>::default();
        // SAFETY: the configuration lives. The callbacks get `calls`, which lives until the handle is destroyed: see
        // `drop`. Without a callback for its log, the library writes nothing to standard error.
        unsafe {
            sys::rd_kafka_conf_set_opaque(config.ptr(), (&raw const *calls).cast_mut().cast());
            sys::rd_kafka_conf_set_rebalance_cb(config.ptr(), Some(on_rebalance));
            sys::rd_kafka_conf_set_error_cb(config.ptr(), Some(on_error));
            sys::rd_kafka_conf_set_log_cb(config.ptr(), None);
        }
        let mut text = [0; 512];
        let config = ManuallyDrop::new(config);
        // SAFETY: the handle takes the configuration over, unless it is null: then the configuration is given back, and
        // a few bytes leak. The text has room for what its length says.
        let handle = unsafe {
            let kind = sys::rd_kafka_type_t::RD_KAFKA_CONSUMER;
            sys::rd_kafka_new(kind, config.ptr(), text.as_mut_ptr(), text.len())
        };
        if handle.is_null() {
            // SAFETY: the library has ended the text with a NUL.
            return Err(unsafe { text_of(text.as_ptr()) });
        }
        let client = Arc::new(Client { handle, topic, calls, is_killed: AtomicBool::new(false) });
        // SAFETY: the handle is a consumer's. All that it has to say comes through the one queue, a reference to which
        // is the fetcher's. Without a group there is no queue of a consumer, and all comes through the main one.
        let queue = unsafe {
            sys::rd_kafka_poll_set_consumer(handle);
            let queue = sys::rd_kafka_queue_get_consumer(handle);
            if queue.is_null() { sys::rd_kafka_queue_get_main(handle) } else { queue }
        };
        let fetcher = Fetcher { client: Arc::clone(&client), queue, buffer: Vec::new(), one_thread: PhantomData };
        Ok((client, fetcher))
    }

    /// The first offset of a partition, and the one behind the last message that may be read.
    pub(super) fn range(&self, partition: i32, wait: Duration) -> Result<(i64, i64), Failure> {
        let (mut low, mut high) = (0, 0);
        // SAFETY: the handle lives; the topic's name ends with a NUL; both numbers live until the call returns.
        check(unsafe {
            let topic = self.topic.as_ptr();
            let wait = milliseconds(wait);
            sys::rd_kafka_query_watermark_offsets(self.handle, topic, partition, &mut low, &mut high, wait)
        })?;
        Ok((low, high))
    }

    /// What the group has committed of partitions; those without an offset are left out.
    pub(super) fn committed(&self, partitions: &[i32], wait: Duration) -> Result<Vec<(i32, i64)>, Failure> {
        let list = List::new(&self.topic, partitions.iter().map(|partition| (*partition, INVALID, -1)));
        // SAFETY: the handle and the list live.
        check(unsafe { sys::rd_kafka_committed(self.handle, list.0, milliseconds(wait)) })?;
        Ok(list.read().into_iter().filter(|(_, offset)| *offset >= 0).collect())
    }

    /// The offset behind the last message of a partition, as the last answer of its leader said.
    pub(super) fn known_end(&self, partition: i32) -> Option<i64> {
        let (mut low, mut high) = (0, 0);
        // SAFETY: the handle lives; the topic's name ends with a NUL; both numbers live until the call returns.
        let code = unsafe {
            sys::rd_kafka_get_watermark_offsets(self.handle, self.topic.as_ptr(), partition, &mut low, &mut high)
        };
        (code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// Asks what the topic is, and calls `meanwhile` every tenth of a second until there is an answer, or that says to
    /// stop.
    pub(super) fn describe<E: From<Failure>>(
        &self,
        wait: Duration,
        mut meanwhile: impl FnMut() -> Result<(), E>,
    ) -> Result<Topic, E> {
        let asked = Asked::new(self, wait);
        loop {
            if let Some(answer) = asked.answer() {
                return answer.map_err(E::from);
            }
            meanwhile()?;
        }
    }

    /// The id of the cluster; `None` if no broker says it in time.
    pub(super) fn cluster(&self, wait: Duration) -> Option<String> {
        // SAFETY: the handle lives; the text is null, or this function's, and given back by the library's own function.
        unsafe {
            let id = sys::rd_kafka_clusterid(self.handle, milliseconds(wait));
            if id.is_null() {
                return None;
            }
            let text = text_of(id);
            sys::rd_kafka_mem_free(self.handle, id.cast());
            Some(text)
        }
    }

    /// Notes where the group stands, for those who look at it; does not wait.
    pub(super) fn note(&self, offsets: impl IntoIterator<Item = (i32, i64)>) {
        self.commit(offsets, true);
    }

    /// The same, and waits until it is done.
    pub(super) fn note_and_wait(&self, offsets: impl IntoIterator<Item = (i32, i64)>) {
        self.commit(offsets, false);
    }

    fn commit(&self, offsets: impl IntoIterator<Item = (i32, i64)>, is_async: bool) {
        let list = List::new(&self.topic, offsets.into_iter().map(|(partition, offset)| (partition, offset, -1)));
        // SAFETY: the handle and the list live. What becomes of it does not matter: positions are in the target.
        unsafe { sys::rd_kafka_commit(self.handle, list.0, c_int::from(is_async)) };
    }

    /// What the library has had to say since the last call.
    pub(super) fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut *locked(&self.calls.notices))
    }

    /// Whether the group has given or taken partitions since the last call.
    pub(super) fn was_rebalanced(&self) -> bool {
        self.calls.was_rebalanced.swap(false, Ordering::Relaxed)
    }

    /// From now on it does not leave the group when it is dropped, as if the process had been killed.
    #[cfg(test)]
    pub(super) fn kill(&self) {
        self.is_killed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let flags = if self.is_killed.load(Ordering::Relaxed) { sys::RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE } else { 0 };
        // SAFETY: nothing else has the handle any more. `calls` lives until this function has returned.
        unsafe { sys::rd_kafka_destroy_flags(self.handle, flags) }
    }
}

/// No offset.
const INVALID: i64 = -1001;

fn milliseconds(wait: Duration) -> c_int {
    c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX)
}

fn check(code: RDKafkaRespErr) -> Result<(), Failure> {
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR { Ok(()) } else { Err(Failure::of(code)) }
}

/// The words of an error about a configuration, without its value, which may be a secret.
pub(super) fn words(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, words, name, _) => format!("{name}: {words}"),
        other => other.to_string(),
    }
}

/// A question about the topic that is on its way.
struct Asked<'c> {
    client: &'c Client,
    queue: *mut sys::rd_kafka_queue_t,
}

impl<'c> Asked<'c> {
    fn new(client: &'c Client, wait: Duration) -> Self {
        let mut topic = client.topic.as_ptr();
        // SAFETY: the handle lives; the library copies the topic's name and the options before it returns, so that
        // both are given back here. The queue is given back by `drop`.
        unsafe {
            let queue = sys::rd_kafka_queue_new(client.handle);
            let kind = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
            let options = sys::rd_kafka_AdminOptions_new(client.handle, kind);
            let (mut text, wait) = ([0; 128], milliseconds(wait));
            sys::rd_kafka_AdminOptions_set_request_timeout(options, wait, text.as_mut_ptr(), text.len());
            let topics = sys::rd_kafka_TopicCollection_of_topic_names(&mut topic, 1);
            sys::rd_kafka_DescribeTopics(client.handle, topics, options, queue);
            sys::rd_kafka_TopicCollection_destroy(topics);
            sys::rd_kafka_AdminOptions_destroy(options);
            Asked { client, queue }
        }
    }

    /// The answer if there is one within a tenth of a second.
    fn answer(&self) -> Option<Result<Topic, Failure>> {
        debug_assert!(!self.client.handle.is_null());
        // SAFETY: the queue lives; the event is this function's, and what is read of it is copied before its end.
        unsafe {
            let event = sys::rd_kafka_queue_poll(self.queue, 100);
            if event.is_null() {
                return None;
            }
            let answer = described(event);
            sys::rd_kafka_event_destroy(event);
            answer
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // SAFETY: the queue is this one's; an answer that comes later is dropped by the library.
        unsafe { sys::rd_kafka_queue_destroy(self.queue) }
    }
}

/// What an event says of the topic; `None` if it is another event.
///
/// # Safety
/// `event` is an event of the library.
unsafe fn described(event: *mut sys::rd_kafka_event_t) -> Option<Result<Topic, Failure>> {
    // SAFETY: the caller's promise; the result and its parts are read while the event lives, and checked for null.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return None;
        }
        let code = sys::rd_kafka_event_error(event);
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            let text = text_of(sys::rd_kafka_event_error_string(event));
            return Some(Err(Failure { code: code as i32, text }));
        }
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if count == 0 || topics.is_null() {
            return Some(Err(Failure::of(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)));
        }
        let topic = *topics;
        let error = sys::rd_kafka_TopicDescription_error(topic);
        let code = sys::rd_kafka_error_code(error) as i32;
        if code != 0 {
            return Some(Err(Failure { code, text: text_of(sys::rd_kafka_error_string(error)) }));
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        let id = if id.is_null() { String::new() } else { text_of(sys::rd_kafka_Uuid_base64str(id)) };
        let mut count = 0;
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
        let number = |at| sys::rd_kafka_TopicPartitionInfo_partition(*partitions.add(at));
        Some(Ok(Topic { id, partitions: (0..count).map(number).collect() }))
    }
}

/// What fetches for a client: owned by one thread.
pub(super) struct Fetcher {
    client: Arc<Client>,
    queue: *mut sys::rd_kafka_queue_t,
    buffer: Vec<*mut sys::rd_kafka_message_t>,
    /// Not to be shared between threads.
    one_thread: PhantomData<Cell<()>>,
}

// SAFETY: the pointers may be used by any thread, and only one has them.
unsafe impl Send for Fetcher {}

impl Fetcher {
    /// Joins the group.
    pub(super) fn subscribe(&self) -> Result<(), Failure> {
        let list = List::new(&self.client.topic, [(-1, INVALID, -1)]);
        // SAFETY: the handle and the list live.
        check(unsafe { sys::rd_kafka_subscribe(self.client.handle, list.0) })
    }

    /// Fetches a partition from an offset on, whether it was fetched before or not.
    pub(super) fn begin(&self, partition: i32, offset: i64, leader_epoch: i32) -> Result<(), Failure> {
        self.end(partition)?;
        let list = List::new(&self.client.topic, [(partition, offset, leader_epoch)]);
        // SAFETY: the handle and the list live; the error object is taken over.
        let failure = unsafe { Failure::taken(sys::rd_kafka_incremental_assign(self.client.handle, list.0)) };
        if failure.is_none() {
            locked(&self.client.calls.fetched).insert(partition);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Fetches a partition no more.
    pub(super) fn end(&self, partition: i32) -> Result<(), Failure> {
        if !locked(&self.client.calls.fetched).remove(&partition) {
            return Ok(());
        }
        let list = List::new(&self.client.topic, [(partition, INVALID, -1)]);
        // SAFETY: the handle and the list live; the error object is taken over.
        unsafe { Failure::taken(sys::rd_kafka_incremental_unassign(self.client.handle, list.0)) }.map_or(Ok(()), Err)
    }

    /// Holds all partitions back, or lets them go on from behind the last message that was taken. Only if that changes
    /// something.
    pub(super) fn hold(&self, is_held: bool) {
        let fetched: Vec<i32> = locked(&self.client.calls.fetched).iter().copied().collect();
        let list = List::new(&self.client.topic, fetched.into_iter().map(|partition| (partition, INVALID, -1)));
        // SAFETY: the handle and the list live. For a partition that is just taken away it fails, and means nothing.
        unsafe {
            match is_held {
                true => sys::rd_kafka_pause_partitions(self.client.handle, list.0),
                false => sys::rd_kafka_resume_partitions(self.client.handle, list.0),
            };
        }
    }

    /// Calls `visit` with what there is, and how many there are from there on: waits up to `wait` for the first, and
    /// takes at most `most`. What the library has to say beside is in [`Client::notices`]. How many there were.
    pub(super) fn take(&mut self, most: usize, wait: Duration, mut visit: impl FnMut(Taken<'_>, usize)) -> usize {
        let mut count = self.fill(0, most, Duration::ZERO);
        if count == 0 && !wait.is_zero() {
            // A batch waits until it is full, or the time is over: one message does not.
            count = self.fill(0, 1, wait);
            if count == 1 {
                count += self.fill(1, most.saturating_sub(1), Duration::ZERO);
            }
        }
        for (at, &message) in self.buffer[..count].iter().enumerate() {
            // SAFETY: the library has handed the message over. It lives until it is destroyed, behind the last use.
            unsafe {
                visit(taken(message), count - at);
                sys::rd_kafka_message_destroy(message);
            }
        }
        count
    }

    /// Takes up to `most` messages into the buffer, from a place on.
    fn fill(&mut self, from: usize, most: usize, wait: Duration) -> usize {
        self.buffer.resize(BATCH, std::ptr::null_mut());
        let Some(room) = self.buffer.get_mut(from..BATCH.min(from + most)) else { return 0 };
        // SAFETY: the queue lives, and the buffer has room for so many pointers.
        let count =
            unsafe { sys::rd_kafka_consume_batch_queue(self.queue, milliseconds(wait), room.as_mut_ptr(), room.len()) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Leaves the group, and waits until that is done.
    pub(super) fn close(&self) {
        // SAFETY: the handle lives. Callbacks are called meanwhile, by this thread.
        unsafe { sys::rd_kafka_consumer_close(self.client.handle) };
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        // SAFETY: the reference to the queue is this one's.
        unsafe { sys::rd_kafka_queue_destroy(self.queue) }
    }
}

/// What a message of the library is.
///
/// # Safety
/// `message` is a message of the library that lives as long as `'m`.
unsafe fn taken<'m>(message: *mut sys::rd_kafka_message_t) -> Taken<'m> {
    // SAFETY: the caller's promise. The code is read as a number, since a newer broker may send one that the bindings
    // do not know.
    unsafe {
        let code = (&raw const (*message).err).cast::<i32>().read();
        let (partition, offset) = ((*message).partition, (*message).offset);
        match code {
            0 => Taken::Message(Raw { message, lives: PhantomData }),
            code if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTITION_EOF as i32 => Taken::End(partition, offset),
            code => {
                // For errors, the body is the text.
                let text = bytes_of((*message).payload, (*message).len).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                Taken::Failed(partition, Failure { code, text })
            }
        }
    }
}

/// The group gives partitions to this consumer, or takes them away. Both are answered at once: what is given is fetched
/// later, by [`Fetcher::begin`], so that the group need not wait until a target says where to begin.
///
/// # Safety
/// The library calls it with the handle, a list and the pointer that it was made with.
unsafe extern "C" fn on_rebalance(
    handle: *mut sys::rd_kafka_t,
    code: RDKafkaRespErr,
    list: *mut sys::rd_kafka_topic_partition_list_t,
    opaque: *mut c_void,
) {
    // SAFETY: the pointer is to the client's `calls`, which live as long as the handle; the list lives meanwhile.
    let (calls, partitions) = unsafe { (&*opaque.cast::<Calls>(), elements(list)) };
    let partitions: Vec<i32> = partitions.into_iter().map(|(partition, _)| partition).collect();
    let is_given = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    let mut fetched = locked(&calls.fetched);
    let ended: Vec<i32> = partitions.iter().copied().filter(|one| !is_given && fetched.remove(one)).collect();
    drop(fetched);
    // SAFETY: the handle and the lists live; error objects are taken over. All partitions are of one topic, whose name
    // the list of the library has, if it has any.
    unsafe {
        let topic = if (*list).cnt > 0 { CStr::from_ptr((*(*list).elems).topic) } else { c"" };
        let answer = List::new(topic, ended.into_iter().map(|partition| (partition, INVALID, -1)));
        Failure::taken(match is_given {
            true => sys::rd_kafka_incremental_assign(handle, answer.0),
            false => sys::rd_kafka_incremental_unassign(handle, answer.0),
        });
    }
    let notice = if is_given { Notice::Assigned(partitions) } else { Notice::Revoked(partitions) };
    calls.was_rebalanced.store(true, Ordering::Relaxed);
    locked(&calls.notices).push(notice);
}

/// Something went wrong that belongs to no partition.
///
/// # Safety
/// The library calls it with the handle, a text and the pointer that it was made with.
unsafe extern "C" fn on_error(handle: *mut sys::rd_kafka_t, code: c_int, text: *const c_char, opaque: *mut c_void) {
    // SAFETY: the pointer is to the client's `calls`, which live as long as the handle; the text ends with a NUL.
    let (calls, mut failure) = unsafe { (&*opaque.cast::<Calls>(), Failure { code, text: text_of(text) }) };
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__FATAL as i32 {
        let mut text = [0; 512];
        // SAFETY: the handle lives, and the text has room for what its length says.
        let code = unsafe { sys::rd_kafka_fatal_error(handle, text.as_mut_ptr(), text.len()) };
        // SAFETY: the library has ended the text with a NUL.
        failure = Failure { code: code as i32, text: unsafe { text_of(text.as_ptr()) } };
    }
    locked(&calls.notices).push(Notice::Error(failure));
}
