//! What is asked of a server about one stream and its group: commands, scripts, and what their answers mean.

use std::fmt::Write as _;
use std::time::Duration;

use millstream_core::queue::{Lack, MessageId, Messages};

use super::connection::{Commands, Connection};
use super::fault::Fault;
use super::gaps::{GroupFacts, StreamFacts};
use super::ranges::Range;
use super::reply::{EntryId, Fields, Value};
use super::spec::Start;
use super::watch::Listed;

/// The most entries of one claim: a script has limits, and keeps the server from everything else meanwhile.
const CLAIMED_AT_ONCE: usize = 1000;

/// How many entries a look takes at most, from each end, and how many it asks for at once.
const LOOKED_AT: usize = 500;
const LOOKED_AT_ONCE: usize = 50;

/// The most ids of one acknowledgement, which takes the server some 20 ms. Several smaller ones would take longer: the
/// server writes its log after each of them, and after every 16 kB of commands.
pub(super) const ACKNOWLEDGED_AT_ONCE: usize = 40_000;

/// How long the server may take for many commands.
const PATIENCE: Duration = Duration::from_secs(60);

/// A consumer of this name, which never reads, says that the group's count of read entries is right. Redis 7.0 does not
/// write the count to its log when a consumer reads, so after a restart it is as it was when somebody has set it last.
pub(super) const COUNTED: &str = "millstream-counted";

/// Creates a group that counts what it reads from its beginning, or makes sure that an existing one counts. KEYS:
/// stream. ARGV: group, whether it begins at the first entry, the name that says that it counts. 1 if it is new.
const CREATE: &str = "
local key, name = KEYS[1], ARGV[1]
local made, stream, group = redis.call('EXISTS', key) == 0, {}, nil
if not made then
  local info = redis.call('XINFO', 'STREAM', key)
  for at = 1, #info, 2 do stream[info[at]] = info[at + 1] end
  for _, pairs in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local one = {}
    for at = 1, #pairs, 2 do one[pairs[at]] = pairs[at + 1] end
    if one['name'] == name then group = one end
  end
end
local added, length = stream['entries-added'] or 0, stream['length'] or 0
if not group then
  local first = ARGV[2] == '1'
  redis.call('XGROUP', 'CREATE', key, name, first and '0' or '$', 'MKSTREAM',
    'ENTRIESREAD', first and added - length or added)
  redis.call('XGROUP', 'CREATECONSUMER', key, name, ARGV[3])
  return 1
end
if redis.call('XGROUP', 'CREATECONSUMER', key, name, ARGV[3]) == 1 then
  local at = group['last-delivered-id']
  local left = redis.call('XRANGE', key, '-', at, 'COUNT', 1)
  if at == stream['last-generated-id'] then
    redis.call('XGROUP', 'SETID', key, name, at, 'ENTRIESREAD', added)
  elseif #left == 0 then
    redis.call('XGROUP', 'SETID', key, name, at, 'ENTRIESREAD', added - length)
  else
    redis.call('XGROUP', 'SETID', key, name, at)
  end
end
return 0";

/// Writes the group's count of read entries to the server's log. KEYS: stream. ARGV: group.
const KEEP_COUNT: &str = "
for _, pairs in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for at = 1, #pairs, 2 do group[pairs[at]] = pairs[at + 1] end
  if group['name'] == ARGV[1] and group['entries-read'] then
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], group['last-delivered-id'], 'ENTRIESREAD', group['entries-read'])
    return 1
  end
end
return 0";

/// Counts `lost` entries as read by the group, unless more would be read than were added. KEYS: stream. ARGV: group,
/// lost, or '-' for all that are not in the stream any more. 0 if another has done so.
const COUNT_LOST: &str = "
local stream, info = {}, redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do stream[info[at]] = info[at + 1] end
local added = stream['entries-added']
for _, pairs in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for at = 1, #pairs, 2 do group[pairs[at]] = pairs[at + 1] end
  if group['name'] == ARGV[1] then
    local read = group['entries-read']
    if ARGV[2] == '-' then
      if read then return 0 end
      read = added - stream['length']
    elseif read then
      read = read + tonumber(ARGV[2])
    else
      return 1
    end
    if read > added then return 0 end
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], group['last-delivered-id'], 'ENTRIESREAD', read)
    return 1
  end
end
return 0";

/// Moves entries that `from` has now to `to`. KEYS: stream. ARGV: group, from, to, where to start, count. Gives the
/// last id looked at, the ids that have no entry any more, which stay where they are, and the entries.
const CLAIM: &str = "
local kept, gone, last = {}, {}, false
for _, p in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], '+', ARGV[5], ARGV[2])) do
  local at = #redis.call('XRANGE', KEYS[1], p[1], p[1]) > 0 and kept or gone
  at[#at + 1] = p[1]
  last = p[1]
end
local entries = #kept > 0 and redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, unpack(kept)) or {}
return {last, gone, entries}";

/// Removes a consumer that has no entries. KEYS: stream. ARGV: group, consumer. -1 if it has some.
const REMOVE: &str = "
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return -1 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])";

/// A stream and the group that reads it.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) key: String,
    pub(super) group: String,
    pub(super) fields: Fields,
}

/// What there was at the moment of a read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked {
    pub(super) stream: StreamFacts,
    /// Before the read.
    pub(super) group: GroupFacts,
}

/// What a claim has brought.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// Where the next claim continues; `None` if the consumer has nothing more.
    pub(super) last: Option<EntryId>,
    /// Ids that have no entry any more.
    pub(super) gone: Vec<EntryId>,
    pub(super) messages: Messages,
}

impl Stream {
    /// Creates the group, and the stream if there is none; whether it did. An existing group counts from now on.
    pub(super) async fn create(&self, connection: &mut Connection, start: Start) -> Result<bool, Fault> {
        let first = if start == Start::Earliest { "1" } else { "0" };
        Ok(self.script(connection, CREATE, &[first, COUNTED]).await?.integer() == Some(1))
    }

    /// What the stream and the group are like now.
    pub(super) async fn facts(&self, connection: &mut Connection) -> Result<(StreamFacts, GroupFacts), Fault> {
        let mut commands = Commands::default();
        commands.add([b"XINFO".as_slice(), b"STREAM", self.key.as_bytes()]);
        commands.add([b"XINFO".as_slice(), b"GROUPS", self.key.as_bytes()]);
        let answers = connection.all(&commands, PATIENCE).await?;
        Ok((stream_facts(&answers[0])?, self.group_facts(&answers[1])?))
    }

    /// The first and the last entries, each of about half of `bytes` and at most [`LOOKED_AT`].
    pub(super) async fn sample(&self, connection: &mut Connection, bytes: usize) -> Result<Messages, Fault> {
        let has_room = |some: &Messages| some.held() < bytes.div_ceil(2) && some.len() < LOOKED_AT;
        let mut first = Messages::default();
        let mut next = "-".to_owned();
        while first.is_empty() || has_room(&first) {
            let count = self.range(connection, ["XRANGE", &next, "+"], &mut first).await?;
            let Some(id) = first.ids().last().filter(|_| count == LOOKED_AT_ONCE) else { return Ok(first) };
            next = format!("({}", EntryId::from(*id));
        }
        let (mut last, mut before) = (Messages::default(), "+".to_owned());
        while last.is_empty() || has_room(&last) {
            let count = self.range(connection, ["XREVRANGE", &before, &next], &mut last).await?;
            let Some(id) = last.ids().last().filter(|_| count == LOOKED_AT_ONCE) else { break };
            before = format!("({}", EntryId::from(*id));
        }
        (0..last.len()).rev().for_each(|number| first.append(&last, number));
        Ok(first)
    }

    /// Adds up to [`LOOKED_AT_ONCE`] entries of a range; how many there were.
    async fn range(
        &self,
        connection: &mut Connection,
        [command, from, to]: [&str; 3],
        messages: &mut Messages,
    ) -> Result<usize, Fault> {
        let count = LOOKED_AT_ONCE.to_string();
        let answer = connection.command(&[command, &self.key, from, to, "COUNT", &count].map(str::as_bytes)).await?;
        answer.refusal()?;
        let entries = answer.array().unwrap_or_default();
        entries.iter().try_for_each(|entry| self.add_entry(entry, messages))?;
        Ok(entries.len())
    }

    /// Reads new entries without waiting, and says what there was at the same moment.
    pub(super) async fn read_checked(
        &self,
        connection: &mut Connection,
        consumer: &str,
        count: usize,
        messages: &mut Messages,
    ) -> Result<Checked, Fault> {
        let count = count.to_string();
        let mut commands = Commands::default();
        commands.add([b"MULTI".as_slice()]);
        commands.add([b"XINFO".as_slice(), b"STREAM", self.key.as_bytes()]);
        commands.add([b"XINFO".as_slice(), b"GROUPS", self.key.as_bytes()]);
        commands.add(
            ["XREADGROUP", "GROUP", &self.group, consumer, "COUNT", &count, "STREAMS", &self.key, ">"]
                .map(str::as_bytes),
        );
        commands.add(["EVAL", KEEP_COUNT, "1", &self.key, &self.group].map(str::as_bytes));
        commands.add([b"EXEC".as_slice()]);
        let (answers, _) = connection.checked_entries(&commands, &self.fields, messages).await?;
        let [stream, groups, _] = answers.as_slice() else {
            return Err(Fault::Malformed(format!("a transaction has {} answers", answers.len())));
        };
        Ok(Checked { stream: stream_facts(stream)?, group: self.group_facts(groups)? })
    }

    /// Waits until the stream has an entry behind this one, without reading it for the group: such a read could not be
    /// checked, nor its count be kept.
    pub(super) async fn wait(&self, connection: &mut Connection, behind: EntryId, wait: Duration) -> Result<(), Fault> {
        let (behind, block) = (behind.to_string(), wait.as_millis().max(1).to_string());
        let words = ["XREAD", "COUNT", "1", "BLOCK", &block, "STREAMS", &self.key, &behind].map(str::as_bytes);
        connection.entries(&words, wait, &self.fields, &mut Messages::default()).await.map(drop)
    }

    /// Acknowledges entries, and `deletes` them.
    pub(super) async fn acknowledge(
        &self,
        connection: &mut Connection,
        ids: &[EntryId],
        deletes: bool,
    ) -> Result<(), Fault> {
        let mut commands = Commands::default();
        for ids in ids.chunks(ACKNOWLEDGED_AT_ONCE) {
            let (text, ends) = shown(ids);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let ids: Vec<&str> = starts.zip(&ends).map(|(start, end)| &text[start..*end]).collect();
            let mut add = |words: &[&str], ids: &[&str]| {
                commands.add(words.iter().chain(ids).map(|word| word.as_bytes()).collect::<Vec<_>>());
            };
            if deletes {
                add(&["MULTI"], &[]);
            }
            add(&["XACK", &self.key, &self.group], &ids);
            if deletes {
                add(&["XDEL", &self.key], &ids);
                add(&["EXEC"], &[]);
            }
        }
        for answer in connection.all(&commands, PATIENCE).await? {
            answer.refusal()?;
            answer.array().unwrap_or_default().iter().try_for_each(Value::refusal)?;
        }
        Ok(())
    }

    /// Takes up to `count` entries that `from` has, behind `after`.
    pub(super) async fn claim(
        &self,
        connection: &mut Connection,
        from: &str,
        to: &str,
        after: Option<EntryId>,
        count: usize,
    ) -> Result<Claimed, Fault> {
        let start = after.map_or("-".to_owned(), |after| format!("({after}"));
        let count = count.clamp(1, CLAIMED_AT_ONCE).to_string();
        let answer = self.script(connection, CLAIM, &[from, to, &start, &count]).await?;
        let Some([last, gone, entries]) = answer.array() else {
            return Err(Fault::Malformed("a claim has another answer".to_owned()));
        };
        let mut claimed = Claimed { last: entry_id(last), ..Claimed::default() };
        claimed.gone.extend(gone.array().unwrap_or_default().iter().filter_map(entry_id));
        for entry in entries.array().unwrap_or_default() {
            self.add_entry(entry, &mut claimed.messages)?;
        }
        Ok(claimed)
    }

    /// Removes a consumer from the group if it has no entries; whether it is not there any more.
    pub(super) async fn remove(&self, connection: &mut Connection, consumer: &str) -> Result<bool, Fault> {
        Ok(self.script(connection, REMOVE, &[consumer]).await?.integer() != Some(-1))
    }

    /// Counts lost entries as read, so that they are reported once; whether no other consumer has done so. `None` for
    /// all that are not in the stream any more, where the server does not know how many were read.
    pub(super) async fn count_lost(&self, connection: &mut Connection, lost: Option<u64>) -> Result<bool, Fault> {
        let lost = lost.map_or("-".to_owned(), |lost| lost.to_string());
        Ok(self.script(connection, COUNT_LOST, &[&lost]).await?.integer() == Some(1))
    }

    /// The consumers of the group.
    pub(super) async fn consumers(&self, connection: &mut Connection) -> Result<Vec<Listed>, Fault> {
        let words = [b"XINFO".as_slice(), b"CONSUMERS", self.key.as_bytes(), self.group.as_bytes()];
        let answer = connection.command(&words).await?;
        answer.refusal()?;
        let listed = |consumer: &Value| {
            let number =
                |key| consumer.field(key).and_then(Value::integer).and_then(|number| u64::try_from(number).ok());
            let Some(Value::Bytes(name)) = consumer.field("name") else { return None };
            let name = String::from_utf8_lossy(name).into_owned();
            Some(Listed { name, pending: number("pending")?, idle: Duration::from_millis(number("idle")?) })
        };
        let consumers = answer.array().unwrap_or_default().iter().map(listed).collect::<Option<Vec<Listed>>>();
        consumers.ok_or_else(|| Fault::Malformed("a consumer has no name or number".to_owned()))
    }

    /// Of these ranges, those in which some entry is handed out and not acknowledged.
    pub(super) async fn pending(&self, connection: &mut Connection, ranges: &[Range]) -> Result<Vec<bool>, Fault> {
        let mut commands = Commands::default();
        for range in ranges {
            let (first, last) = (range.first.to_string(), range.last.to_string());
            commands.add(["XPENDING", &self.key, &self.group, &first, &last, "1"].map(str::as_bytes));
        }
        let answers = connection.all(&commands, PATIENCE).await?;
        answers
            .iter()
            .map(|answer| answer.refusal().map(|()| answer.array().is_some_and(|some| !some.is_empty())))
            .collect()
    }

    /// Runs a script on the stream. The group is its first argument.
    async fn script(&self, connection: &mut Connection, script: &str, arguments: &[&str]) -> Result<Value, Fault> {
        let mut words = vec!["EVAL", script, "1", &self.key, &self.group];
        words.extend(arguments);
        let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        let answer = connection.command(&words).await?;
        answer.refusal()?;
        Ok(answer)
    }

    fn add_entry(&self, entry: &Value, messages: &mut Messages) -> Result<(), Fault> {
        let malformed = || Fault::Malformed("an entry has another form".to_owned());
        let Some([id, fields]) = entry.array() else { return Err(malformed()) };
        let id = entry_id(id).ok_or_else(malformed)?;
        let mut message = messages.begin(id.into());
        message.time(i64::try_from(id.milliseconds).unwrap_or(-1));
        match fields.array() {
            None => message.lacks(Lack::Gone),
            Some(fields) => {
                for pair in fields.chunks_exact(2) {
                    let (Value::Bytes(name), Value::Bytes(value)) = (&pair[0], &pair[1]) else {
                        return Err(malformed());
                    };
                    self.fields.add(&mut message, fields.len() / 2, name, value);
                }
            }
        }
        message.end();
        Ok(())
    }

    fn group_facts(&self, groups: &Value) -> Result<GroupFacts, Fault> {
        refusal_of_info(groups)?;
        let groups = groups.array().unwrap_or_default();
        let named = |group: &&Value| group.field("name") == Some(&Value::Bytes(self.group.as_bytes().to_vec()));
        let group = groups.iter().find(named).ok_or_else(|| no_group("the stream has no such group"))?;
        let number = |key| group.field(key).and_then(Value::integer).and_then(|number| u64::try_from(number).ok());
        let delivered = group.field("last-delivered-id").and_then(entry_id);
        Ok(GroupFacts {
            delivered: delivered.ok_or_else(|| Fault::Malformed("a group has no last entry".to_owned()))?,
            read: number("entries-read"),
            lag: number("lag"),
            others: groups.len() - 1,
        })
    }
}

impl Value {
    /// The error that it is, if it is one.
    pub(super) fn refusal(&self) -> Result<(), Fault> {
        match self {
            Value::Error(error) => Err(Fault::Answer(error.clone())),
            _ => Ok(()),
        }
    }
}

fn no_group(what: &str) -> Fault {
    Fault::Answer(format!("NOGROUP {what}"))
}

/// The error that `XINFO` gives. That there is no stream has no code of its own.
fn refusal_of_info(answer: &Value) -> Result<(), Fault> {
    match answer {
        Value::Error(error) if error == "ERR no such key" => Err(no_group("there is no such stream")),
        other => other.refusal(),
    }
}

fn entry_id(value: &Value) -> Option<EntryId> {
    value.text()?.parse().ok()
}

fn stream_facts(info: &Value) -> Result<StreamFacts, Fault> {
    refusal_of_info(info)?;
    if info.field("entries-added").is_none() {
        return Err(Fault::Old("it does not count the entries of a stream".to_owned()));
    }
    let number = |key| info.field(key).and_then(Value::integer).and_then(|number| u64::try_from(number).ok());
    let id = |key| info.field(key).and_then(entry_id);
    let facts = || {
        Some(StreamFacts {
            length: number("length")?,
            added: number("entries-added")?,
            last: id("last-generated-id")?,
            first: id("recorded-first-entry-id")?,
            deleted: id("max-deleted-entry-id")?,
        })
    };
    facts().ok_or_else(|| Fault::Malformed("a stream is described in another form".to_owned()))
}

/// Ids one behind the other, and where each ends.
fn shown(ids: &[EntryId]) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(ids.len() * 24);
    let end = |id: &EntryId| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{id}");
        text.len()
    };
    let ends = ids.iter().map(end).collect();
    (text, ends)
}

/// The ids of messages as those of entries.
pub(super) fn entry_ids(ids: &[MessageId]) -> Vec<EntryId> {
    ids.iter().map(|id| EntryId::from(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_named_as_such() {
        let facts = |fields: &[&str]| {
            let pairs = fields.iter().flat_map(|name| [Value::Bytes(name.as_bytes().to_vec()), Value::Integer(1)]);
            stream_facts(&Value::Array(pairs.collect()))
        };
        assert!(matches!(facts(&["length", "last-generated-id"]), Err(Fault::Old(_))), "Redis 6");
        assert!(matches!(facts(&["length", "entries-added"]), Err(Fault::Malformed(_))));
    }
}
