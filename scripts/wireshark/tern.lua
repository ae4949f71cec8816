-- Wireshark dissector of tern's data packets and management messages (docs/protocol.md, chapters 2 and 7).
-- How to use it: docs/network.md, "In Wireshark". The file is long because Wireshark loads a script as one file.
--
-- The dissector takes a datagram if every packet in it is well-formed, if its session is known, or if it is a
-- management message. It also takes a datagram if its port is in the preference tern.ports, or if its conversation is
-- decoded as tern. When it sees a frame first, in the order of the capture, it notes what the frame says about requests
-- and sessions. Each later look shows those notes.

local HEADER_BYTES = 24
local VERSION = 2
local MAGIC = 0x4d6e7274
local CONNECT_REQUEST_BYTES = 256
local MESSAGE_BYTES_MAX = 0x40000000
local RFR_PACKETS_MAX = 32
local REQUEST, RFR, PROBE, CANCEL, REPORT, PATH_PROBE = 1, 2, 3, 4, 5, 6
local RESPONSE, CR, CANCELLED, PATH_REPLY = 8, 9, 10, 11
local FIRST, FAILURE, ECN_ECHO, NO_ECHO, TAKES_WHOLE = 1, 8, 16, 32, 128

local kinds = {
  [REQUEST] = "Request", [RFR] = "RFR", [PROBE] = "Probe", [CANCEL] = "Cancel", [REPORT] = "Report",
  [PATH_PROBE] = "Path probe", [RESPONSE] = "Response", [CR] = "CR", [CANCELLED] = "Cancelled", [PATH_REPLY] = "Path reply"}
local failures = {
  [0] = "Failed by the application", "No response", "Unknown request type", "Too large", "No memory", "Deadline passed",
  "Overloaded", "Closing", "Lost"}
local CONNECT_REQUEST, CONNECT_REPLY, DISCONNECT, DISCONNECT_ACK, PING, PONG, ASK, ANSWER, COOKIE = 1, 2, 4, 5, 6, 7, 8, 9, 10
local messages = {
  "Connect request", "Connect reply", "Confirm", "Disconnect", "Disconnect ack", "Ping", "Pong", "Ask", "Answer", "Cookie"}
local codes = {
  [0] = "Ok", "Peer unreachable", "Session reset", "Deadline", "Cancelled", "Refused", "Too large", "Queue full", "No memory",
  "Wrong thread", "No response", "Misuse", "Unavailable"}
local refusals = {
  [0] = "None", "No such endpoint", "No capacity", "No common version", "Transport mismatch", "MTU mismatch",
  "Endpoint closing", "No memory", "Session closed", "Other", "Stale run", "Peers per address", "Sessions per address",
  "Nexus full", "Other user", "Endpoint share", "Other host", "No way back", "Other fabric", "Other partition",
  "Other subnet"}
local liveness = {[0] = "In callback", "Idle", "No session"}

local tern = Proto("tern", "tern RPC")

-- The fields of datagrams.
local data = {
  kind = ProtoField.uint8("tern.kind", "Kind", base.DEC, kinds, 0x0f),
  version = ProtoField.uint8("tern.version", "Version", base.DEC, nil, 0xf0),
  flags = ProtoField.uint8("tern.flags", "Flags", base.HEX),
  first = ProtoField.bool("tern.flags.first", "First packet of its message", 8, nil, 1),
  by_reference = ProtoField.bool("tern.flags.by_reference", "By reference", 8, nil, 2),
  wants_credits = ProtoField.bool("tern.flags.wants_credits", "Wants credits", 8, nil, 4),
  failure = ProtoField.bool("tern.flags.failure", "Failure", 8, nil, 8),
  ecn_echo = ProtoField.bool("tern.flags.ecn_echo", "ECN echo", 8, nil, 16),
  no_echo = ProtoField.bool("tern.flags.no_echo", "No echo", 8, nil, 32),
  paired = ProtoField.bool("tern.flags.paired", "One address and port pair", 8, nil, 64),
  takes_whole = ProtoField.bool("tern.flags.takes_whole", "Takes a whole response", 8, nil, 128),
  length = ProtoField.uint16("tern.length", "Length"),
  session_key = ProtoField.uint32("tern.session_key", "Session key of the receiver", base.HEX),
  packet_number = ProtoField.uint24("tern.packet_number", "Packet number"),
  hold = ProtoField.uint32("tern.hold", "Hold time", base.UNIT_STRING, {" ns"}),
  hold_unknown = ProtoField.bool("tern.hold_unknown", "Hold time is unknown"),
  full_payload = ProtoField.uint32("tern.full_payload", "Payload of the message's full packets", base.UNIT_STRING, {" B"}),
  request_number = ProtoField.uint32("tern.request_number", "Request number"),
  slot = ProtoField.uint8("tern.slot", "Slot"),
  index = ProtoField.uint32("tern.index", "Packet of the message"),
  deadline = ProtoField.relative_time("tern.deadline", "Time left until the deadline"),
  type = ProtoField.uint16("tern.type", "Request type"),
  message_bytes = ProtoField.uint32("tern.message_bytes", "Bytes of the message"),
  count = ProtoField.uint32("tern.count", "Packets asked for"),
  token = ProtoField.uint32("tern.token", "Token", base.HEX),
  echo = ProtoField.uint24("tern.echo", "Answers packet number"),
  large = ProtoField.bool("tern.large", "Of the size that the RFR named"),
  credit_limit = ProtoField.uint8("tern.credit_limit", "Credit limit"),
  failure_code = ProtoField.uint16("tern.failure_code", "Failure", base.DEC, failures),
  app_code = ProtoField.uint16("tern.app_code", "Code of the application"),
  payload = ProtoField.bytes("tern.payload", "Payload"),
  arrived = ProtoField.uint64("tern.arrived", "Arrived", base.HEX),
  finished = ProtoField.uint32("tern.finished", "Finished request"),
  padding = ProtoField.bytes("tern.padding", "Padding")}

local mgmt = {
  version = ProtoField.uint8("tern.mgmt.version", "Message version"),
  kind = ProtoField.uint8("tern.mgmt.kind", "Message", base.DEC, messages),
  length = ProtoField.uint16("tern.mgmt.length", "Length"),
  sender_run = ProtoField.uint64("tern.mgmt.sender_run", "Run of the sender", base.HEX),
  receiver_run = ProtoField.uint64("tern.mgmt.receiver_run", "Run of the receiver", base.HEX),
  token = ProtoField.uint64("tern.mgmt.token", "Token", base.HEX),
  version_min = ProtoField.uint8("tern.mgmt.version_min", "Lowest version"),
  version_max = ProtoField.uint8("tern.mgmt.version_max", "Highest version"),
  to_endpoint = ProtoField.uint16("tern.mgmt.to_endpoint", "Endpoint of the receiver"),
  to_key = ProtoField.uint32("tern.mgmt.to_key", "Session key of the receiver", base.HEX),
  from_key = ProtoField.uint32("tern.mgmt.from_key", "Session key of the sender", base.HEX),
  from_client = ProtoField.bool("tern.mgmt.from_client", "From the client"),
  liveness = ProtoField.uint8("tern.mgmt.liveness", "Liveness", base.DEC, liveness),
  cookie = ProtoField.uint64("tern.mgmt.cookie", "Cookie", base.HEX),
  code = ProtoField.uint8("tern.mgmt.code", "Code", base.DEC, codes),
  refusal = ProtoField.uint8("tern.mgmt.refusal", "Refusal", base.DEC, refusals),
  transport = ProtoField.string("tern.mgmt.transport", "Transport"),
  address = ProtoField.bytes("tern.mgmt.address", "Address of the transport"),
  ip = ProtoField.ipv4("tern.mgmt.data_ip", "Data address"),
  ipv6 = ProtoField.ipv6("tern.mgmt.data_ipv6", "Data address"),
  port = ProtoField.uint16("tern.mgmt.data_port", "Data port"),
  datagram_bytes = ProtoField.uint16("tern.mgmt.datagram_bytes", "Bytes of a datagram"),
  session_key = ProtoField.uint32("tern.mgmt.session_key", "Session key of the sender", base.HEX),
  endpoint = ProtoField.uint16("tern.mgmt.endpoint", "Endpoint of the sender"),
  payload_bytes_max = ProtoField.uint32("tern.mgmt.payload_bytes_max", "Payload of a packet"),
  window = ProtoField.uint8("tern.mgmt.window", "Window"),
  credits = ProtoField.uint8("tern.mgmt.credits", "Credits"),
  first_number = ProtoField.uint32("tern.mgmt.first_number", "First packet number"),
  path_token = ProtoField.uint32("tern.mgmt.path_token", "Path token", base.HEX),
  credit_unit = ProtoField.uint8("tern.mgmt.credit_unit", "Unit of the credits", base.DEC,
    {[0] = "Packets", [10] = "1 KiB", [11] = "2 KiB", [12] = "4 KiB", [13] = "8 KiB", [14] = "16 KiB", [15] = "32 KiB",
     [16] = "64 KiB", [17] = "128 KiB"})}

-- The fields that follow from the capture.
local found = {
  session = ProtoField.uint32("tern.session", "Session of this capture"),
  request_in = ProtoField.framenum("tern.request_in", "Request in", base.NONE, frametype.REQUEST),
  response_in = ProtoField.framenum("tern.response_in", "Response in", base.NONE, frametype.RESPONSE),
  time = ProtoField.relative_time("tern.time", "Time since the request"),
  answers_in = ProtoField.framenum("tern.answers_in", "Answers the packet in", base.NONE, frametype.ACK),
  rtt = ProtoField.relative_time("tern.rtt", "Time since that packet"),
  retransmission = ProtoField.framenum("tern.retransmission", "Retransmission of what was in", base.NONE,
                                       frametype.RETRANS_PREV),
  duplicate = ProtoField.framenum("tern.duplicate", "Duplicate of the packet in", base.NONE, frametype.DUP_ACK)}

local all_fields = {}
for _, group in ipairs({data, mgmt, found}) do
  for _, field in pairs(group) do all_fields[#all_fields + 1] = field end
end
tern.fields = all_fields

local malformed = ProtoExpert.new("tern.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local sent_again = ProtoExpert.new("tern.sent_again", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE)
local twice = ProtoExpert.new("tern.twice", "Duplicate", expert.group.SEQUENCE, expert.severity.NOTE)
local failed = ProtoExpert.new("tern.failed", "Failure", expert.group.RESPONSE_CODE, expert.severity.WARN)
local congestion = ProtoExpert.new("tern.congestion", "Congestion", expert.group.SEQUENCE, expert.severity.NOTE)
tern.experts = {malformed, sent_again, twice, failed, congestion}

local udp_ports = DissectorTable.get("udp.port")
tern.prefs.ports = Pref.range("UDP ports", "31850", "UDP ports whose datagrams are tern's, also where they are malformed", 65535)

-- --- Notes ------------------------------------------------------------------------------------------------------------

-- sessions: the number of sessions. by_client_key, by_server_key: session. frames: by frame number, the notes of each
-- packet by its position.
-- A session has: number; server_key, client_key; sent and received, by packet number: {frame, time, kind, request};
-- requests, by request number: frame, time, response, response_time, and the frame of each index in parts, asked,
-- answers.
-- unjoined: by packet number, the last session without a client key that has sent the packet.
local notes

local function forget_all()
  notes = {sessions = 0, by_client_key = {}, by_server_key = {}, frames = {}, unjoined = {}, asked = {}, claimed = {}}
end
forget_all()
tern.init = forget_all

local function new_session()
  local session = {number = notes.sessions, sent = {}, received = {}, requests = {}}
  notes.sessions = notes.sessions + 1
  return session
end

local function name_session(session, client_key, server_key)
  if client_key then session.client_key, notes.by_client_key[client_key] = client_key, session end
  if server_key then session.server_key, notes.by_server_key[server_key] = server_key, session end
  return session
end

-- A packet of the server names the client's key only. If the capture has no handshake, the packet that it answers
-- identifies the session.
local function join(header)
  local session = notes.unjoined[header.echo]
  local answered = session and session.sent[header.echo]
  if not answered or session.client_key then return nil end
  local is_answer = header.kind == PATH_REPLY and answered.kind == PATH_PROBE or
                    header.kind == RESPONSE and answered.request == header.request
  return is_answer and name_session(session, header.key, nil) or nil
end

local function session_of(header)
  if header.from_client then
    return notes.by_server_key[header.key] or name_session(new_session(), nil, header.key)
  end
  local session = notes.by_client_key[header.key]
  if session and session.server_key then return session end
  return join(header) or session or name_session(new_session(), header.key, nil)
end

local function request_of(session, number)
  local request = session.requests[number]
  if not request then
    request = {parts = {}, asked = {}, answers = {}}
    session.requests[number] = request
  end
  return request
end

-- Returns the frame that had one of the indices before. Indices that were in no frame are now in this one.
local function seen_before(places, first, count, frame)
  local before
  for index = first, first + count - 1 do
    before = before or places[index]
    places[index] = places[index] or frame
  end
  return before
end

local function note_from_client(header, session, note, frame, time)
  if not session.client_key then notes.unjoined[header.number] = session end
  if header.kind ~= REQUEST and header.kind ~= RFR then return end
  local request = request_of(session, header.request)
  note.request = request
  if header.kind == RFR then
    note.again = seen_before(request.asked, header.index, header.size, frame)
    return
  end
  note.again = seen_before(request.parts, header.index, 1, frame)
  if header.index == 0 and not request.frame then request.frame, request.time = frame, time end
end

local function note_from_server(header, session, note, frame, time)
  if not header.no_echo then note.answered = session.sent[header.echo] end
  if header.kind ~= RESPONSE then return end
  local request = request_of(session, header.request)
  note.request = request
  note.again = seen_before(request.answers, header.index, 1, frame)
  if header.index == 0 and not request.response then request.response, request.response_time = frame, time end
end

-- Numbers are used once, so a repeated number is a duplicate (or the quotation of an ICMP error), unless the numbers
-- have wrapped.
-- A request number repeats after 2^26 requests of its slot; a capture does not hold that many.
local function note_packet(header, frame, time)
  local session = session_of(header)
  local note = {session = session, time = time}
  local numbers = header.from_client and session.sent or session.received
  local before = numbers[header.number]
  if before and before.kind == header.kind and before.request == header.request and before.index == header.index then
    note.duplicate = before.frame
    return note
  end
  numbers[header.number] = {frame = frame, time = time, kind = header.kind, request = header.request, index = header.index}
  if header.from_client then
    note_from_client(header, session, note, frame, time)
  else
    note_from_server(header, session, note, frame, time)
  end
  return note
end

-- The notes of the packet at a position of a frame, made at the first look.
local function note_of(pinfo, at, make)
  local frame = pinfo.number
  if not pinfo.visited then
    notes.frames[frame] = notes.frames[frame] or {}
    notes.frames[frame][at] = make(frame, pinfo.rel_ts)
  end
  return notes.frames[frame] and notes.frames[frame][at]
end

-- --- Data packets -----------------------------------------------------------------------------------------------------

-- Reads the header at `at`. The capture must contain 24 bytes there.
local function read_header(tvb, at)
  local low, high = tvb(at + 16, 4):le_uint(), tvb(at + 20, 4):le_uint()
  local first_byte = tvb(at, 1):uint()
  local header = {
    at = at,
    kind = first_byte % 16,
    version = math.floor(first_byte / 16),
    flags = tvb(at + 1, 1):uint(),
    length = tvb(at + 2, 2):le_uint(),
    key = tvb(at + 4, 4):le_uint(),
    number = tvb(at + 8, 3):le_uint(),
    hold = tvb(at + 11, 1):uint(),
    request = tvb(at + 12, 4):le_uint()}
  local function has(flag) return math.floor(header.flags / flag) % 2 == 1 end
  header.from_client = header.kind < 8
  header.first, header.failure, header.no_echo = has(FIRST), has(FAILURE), has(NO_ECHO)
  header.ecn_echo, header.takes_whole = has(ECN_ECHO), has(TAKES_WHOLE)
  if header.from_client then
    header.payload_code = header.hold
    header.index = low % 0x200000
    header.type = math.floor(low / 0x200000) + high % 2 * 0x800
    header.size = math.floor(high / 2)
    if header.first then header.deadline, header.index = header.index, 0 end
  else
    header.echo = low % 0x1000000
    header.credits = math.floor(low / 0x1000000)
    header.size = high % 0x80000000
    header.large = high >= 0x80000000
    header.index = header.first and 0 or header.size
  end
  return header
end

-- Clause 2.3: whether a packet begins here, with `room` bytes left in the datagram.
local function is_plausible(header, room)
  return header.version == VERSION and kinds[header.kind] and header.length >= HEADER_BYTES and header.length <= room
end

-- The error in a plausible packet, or nil.
local function problem_of(header)
  local kind, payload = header.kind, header.length - HEADER_BYTES
  if header.takes_whole and kind ~= REQUEST then return "only a request has this flag (clause 2.4.2)" end
  if header.from_client and header.payload_code ~= 0 and kind ~= REQUEST and kind ~= RFR then
    return "this kind has no payload code (clause 5.1.1)"
  end
  if header.large and (kind ~= RESPONSE or header.first) then return "this packet answers no RFR (clause 5.1.1)" end
  if kind == REQUEST or kind == RESPONSE then
    if header.failure and (kind == REQUEST or payload > 0) then return "a failure is a response without data (clause 5.6)" end
    if header.failure then return nil end
    if kind == REQUEST and not header.first and header.index == 0 then
      return "packet 0 of a request without its flag (clause 5.2)"
    end
    if (header.first or kind == REQUEST) and header.size > MESSAGE_BYTES_MAX then return "a message above 1 GiB (clause 2.6)" end
    if (header.first or kind == REQUEST) and payload > header.size then return "more data than the message has" end
  elseif kind == RFR and (header.size == 0 or header.size > RFR_PACKETS_MAX) then
    return "an RFR asks for 1 to 32 packets (clause 5.4)"
  elseif kind == CR then
    if payload == 0 or payload > 512 or payload % 8 ~= 0 then return "a CR has 1 to 64 words (clause 2.4.1)" end
  elseif kind == REPORT then
    if payload == 0 or payload % 4 ~= 0 then return "a report has request numbers of 4 bytes (clause 2.4.1)" end
  elseif kind ~= PATH_PROBE and kind ~= PATH_REPLY and payload > 0 then
    return "this kind has no payload (clause 2.4.1)"
  end
  return nil
end

-- Calls visit(header) for each packet from `at` on, as long as the packets are plausible, and padding(at, count) for
-- zeros between them. Returns the end position: the end of the datagram or of its captured bytes, or the first byte
-- that is not a packet's.
local function each_packet(tvb, visit, padding)
  local at, total, captured = 0, tvb:reported_len(), tvb:len()
  while at < total and at < captured do
    if tvb(at, 1):uint() == 0 then
      local zeros = (string.find(tvb:raw(at), "[^\0]") or captured - at + 1) - 1
      padding(at, zeros)
      at = at + zeros
    elseif at + HEADER_BYTES > captured then
      return at, captured < total  -- cut off by the capture, or too short
    else
      local header = read_header(tvb, at)
      if not is_plausible(header, total - at) then return at, false end
      visit(header)
      at = at + header.length
    end
  end
  return at, true
end

local function hold_ns(code)
  local exponent, mantissa = math.floor(code / 16), code % 16
  return 16 * (exponent == 0 and mantissa or (16 + mantissa) * 2 ^ (exponent - 1))
end

local function deadline_time(code)
  local us = code % 0x10000 * 2 ^ math.floor(code / 0x10000)
  return NSTime(math.floor(us / 1000000), us % 1000000 * 1000)
end

local function add_link(tree, field, frame)
  if frame then tree:add(field, frame):set_generated() end
end

-- Adds seconds, which are negative if frames are out of order.
local function add_time(tree, field, seconds)
  local sign, ns = seconds < 0 and -1 or 1, math.floor(math.abs(seconds) * 1e9 + 0.5)
  tree:add(field, NSTime(sign * math.floor(ns / 1e9), sign * (ns % 1e9))):set_generated()
end

local function add_found(tree, header, note)
  if not note then return "" end
  tree:add(found.session, note.session.number):set_generated()
  local request = note.request
  if request and header.from_client then add_link(tree, found.response_in, request.response) end
  if request and not header.from_client and request.frame then
    add_link(tree, found.request_in, request.frame)
    if header.index == 0 then add_time(tree, found.time, note.time - request.time) end
  end
  if note.answered then
    add_link(tree, found.answers_in, note.answered.frame)
    add_time(tree, found.rtt, note.time - note.answered.time)
  end
  add_link(tree, found.retransmission, note.again)
  add_link(tree, found.duplicate, note.duplicate)
  if note.again then tree:add_proto_expert_info(sent_again, "Sent again: was in frame " .. note.again) end
  if note.duplicate then tree:add_proto_expert_info(twice, "The same packet was in frame " .. note.duplicate) end
  return note.again and " [retransmission]" or note.duplicate and " [duplicate]" or ""
end

local function add_word_2(tree, tvb, header)
  local at, kind = header.at, header.kind
  local low, high, word = tvb(at + 16, 4), tvb(at + 20, 4), tvb(at + 16, 8)
  if header.from_client then
    if header.first and header.deadline ~= 0x1fffff then tree:add(data.deadline, low, deadline_time(header.deadline)) end
    if kind == REQUEST or kind == RFR then
      tree:add(data.index, low, header.index)
      tree:add(data.type, word, header.type)
      tree:add(kind == RFR and data.count or data.message_bytes, high, header.size)
      local code = header.payload_code
      if code ~= 0 then tree:add(data.full_payload, tvb(at + 11, 1), code * code - code * code % 64) end
    else
      tree:add(data.token, high, header.size)
    end
    return
  end
  if not header.no_echo then tree:add_le(data.echo, tvb(at + 16, 3)) end
  tree:add(data.credit_limit, tvb(at + 19, 1))
  if kind == PATH_REPLY then tree:add(data.token, high, header.size) end
  if kind ~= RESPONSE then return end
  if header.failure then
    tree:add(data.failure_code, high, math.floor(header.size / 0x10000))
    tree:add(data.app_code, high, header.size % 0x10000)
    local text = failures[math.floor(header.size / 0x10000)] or "Unknown failure"
    tree:add_proto_expert_info(failed, text .. ", code " .. header.size % 0x10000)
    return
  end
  tree:add(data.index, high, header.index)
  if header.first then tree:add(data.message_bytes, high, header.size) end
  if header.large then tree:add(data.large, tvb(at + 23, 1), true) end
end

local function add_payload(tree, tvb, header)
  local at, bytes = header.at + HEADER_BYTES, math.min(header.length, tvb:len() - header.at) - HEADER_BYTES
  if bytes <= 0 then return end
  local step = header.kind == CR and 8 or header.kind == REPORT and 4 or nil
  if not step then
    tree:add(data.payload, tvb(at, bytes))
    return
  end
  for i = 0, math.floor(bytes / step) - 1 do
    tree:add_le(step == 8 and data.arrived or data.finished, tvb(at + i * step, step))
  end
end

local function add_header(tree, tvb, header)
  local at = header.at
  tree:add(data.kind, tvb(at, 1))
  tree:add(data.version, tvb(at, 1))
  local flags = tree:add(data.flags, tvb(at + 1, 1))
  for _, name in ipairs({"first", "by_reference", "wants_credits", "failure", "ecn_echo", "no_echo", "paired", "takes_whole"}) do
    flags:add(data[name], tvb(at + 1, 1))
  end
  tree:add_le(data.length, tvb(at + 2, 2))
  tree:add_le(data.session_key, tvb(at + 4, 4))
  tree:add_le(data.packet_number, tvb(at + 8, 3))
  if not header.from_client and header.hold == 255 then tree:add(data.hold_unknown, tvb(at + 11, 1), true) end
  if not header.from_client and header.hold < 255 then tree:add(data.hold, tvb(at + 11, 1), hold_ns(header.hold)) end
  tree:add_le(data.request_number, tvb(at + 12, 4))
  tree:add(data.slot, tvb(at + 12, 1), header.request % 64)
  if header.ecn_echo then tree:add_proto_expert_info(congestion, "The answered packet was marked (ECN CE)") end
end

-- Adds one packet to the tree. Returns its text for the column.
local function add_packet(tree, tvb, pinfo, header)
  local bytes = math.min(header.length, tvb:len() - header.at)
  local packet = tree:add(tern, tvb(header.at, bytes))
  local problem = problem_of(header)
  local note = not problem and
               note_of(pinfo, header.at, function(frame, time) return note_packet(header, frame, time) end) or nil
  add_header(packet, tvb, header)
  add_word_2(packet, tvb, header)
  local text = kinds[header.kind]
  if header.kind == REQUEST or header.kind == RESPONSE or header.kind == RFR then
    text = string.format("%s %d/%d", text, header.request, header.index)
  end
  if header.failure then text = text .. " (failure)" end
  text = text .. add_found(packet, header, note)
  add_payload(packet, tvb, header)
  if problem then
    packet:add_proto_expert_info(malformed, problem)
    text = text .. " [malformed]"
  end
  packet:set_text(string.format("tern %s, packet number %d, %d bytes", text, header.number, header.length))
  return text
end

local function dissect_data(tvb, pinfo, tree)
  local texts = {}
  local function visit(header) texts[#texts + 1] = add_packet(tree, tvb, pinfo, header) end
  local function padding(at, count) tree:add(tern, tvb(at, count), "tern padding"):add(data.padding, tvb(at, count)) end
  local ended, is_whole = each_packet(tvb, visit, padding)
  if not is_whole then
    local rest = tree:add(tern, tvb(ended), "tern: no packet")
    rest:add_proto_expert_info(malformed, "No packet begins here: the rest of the datagram is dropped (clause 2.3)")
    texts[#texts + 1] = "[malformed]"
  end
  pinfo.cols.info = table.concat(texts, ", ")
end

-- --- Management messages ----------------------------------------------------------------------------------------------

local answered_by = {[CONNECT_REPLY] = CONNECT_REQUEST, [COOKIE] = CONNECT_REQUEST, [DISCONNECT_ACK] = DISCONNECT,
                     [PONG] = PING, [ANSWER] = ASK}
local is_asking = {[CONNECT_REQUEST] = true, [DISCONNECT] = true, [PING] = true, [ASK] = true}
local bytes_of = {[CONNECT_REQUEST] = CONNECT_REQUEST_BYTES, [CONNECT_REPLY] = 41, [PING] = 32, [PONG] = 32, [COOKIE] = 46}

-- Reads fields one after the other, and adds each to the tree and, by its name, to `values`. Reads nothing past the
-- end.
local function reader(tvb, tree, values)
  local at = 0
  return function(name, size)
    local field = mgmt[name]
    if at + size > tvb:len() then
      at = tvb:len() + 1
      return nil
    end
    local range = tvb(at, size)
    at = at + size
    if field then tree:add_le(field, range) end
    values[name] = size <= 4 and range:le_uint() or tostring(range:bytes())
    return range
  end
end

-- Adds the bytes of an address. For `udp` they are family 8, port 16, IP, datagram bytes 16; for transports over raw
-- Ethernet version 8, family 8, port 16, datagram bytes 16, IP in 16 bytes.
local function add_address(tree, transport, range)
  local bytes = range:len()
  local family_at, port_at, ip_at, size_at = 0, 1, 3, bytes - 2
  if transport ~= "udp" then
    if bytes ~= 22 then return end
    family_at, port_at, ip_at, size_at = 1, 2, 6, 4
  end
  local family = bytes >= 9 and range(family_at, 1):uint()
  if family == 4 then
    tree:add(mgmt.ip, range(ip_at, 4))
  elseif family == 6 and bytes >= 21 then
    tree:add(mgmt.ipv6, range(ip_at, 16))
  else
    return
  end
  tree:add_le(mgmt.port, range(port_at, 2))
  tree:add_le(mgmt.datagram_bytes, range(size_at, 2))
end

local function read_terms(tree, values, read, reads_all)
  read("transport_bytes", 1)
  local name = read("transport_name", 16)
  if name and values.transport_bytes >= 1 and values.transport_bytes <= 16 then
    values.transport = name(0, values.transport_bytes):string()
    tree:add(mgmt.transport, name(0, values.transport_bytes))
  end
  read("address_bytes", 1)
  local address = read("address_space", 64)
  if address and values.address_bytes >= 1 and values.address_bytes <= 64 then
    tree:add(mgmt.address, address(0, values.address_bytes))
    add_address(tree, values.transport, address(0, values.address_bytes))
  end
  read("session_key", 4)
  read("endpoint", 2)
  read("payload_bytes_max", 4)
  read("window", 1)
  read("credits", 1)
  if not reads_all then return end
  read("first_number", 4)
  read("path_token", 4)
  read("credit_unit", 1)
end

-- Clause 7.2.2: the error in the terms, or nil.
local function problem_of_terms(values)
  local function outside(name, low, high)
    return values[name] and (values[name] < low or values[name] > high) and name .. " is out of its range (clause 7.2.2)"
  end
  return outside("transport_bytes", 1, 16) or outside("address_bytes", 0, 64) or outside("payload_bytes_max", 512, 0x100000)
    or outside("window", 1, 64)
    or outside("credits", values.kind == CONNECT_REPLY and 1 or 0, (values.credit_unit or 0) == 0 and 128 or 255)
    or outside("first_number", 0, 0xffffff) or outside("path_token", 0, 0x7fffffff)
    or values.credit_unit ~= 0 and outside("credit_unit", 10, 17) or nil
end

local function is_zero(text) return not text or text:match("^0*$") ~= nil end

-- By kind: the fields after the token. Returns the error in the fields, or nil.
local bodies = {
  [CONNECT_REQUEST] = function(tree, values, read)
    read("version_min", 1)
    read("version_max", 1)
    read("to_endpoint", 2)
    -- The meaning of these bytes in a later version is unknown here (clause 7.2.3).
    local knows_terms = values.version_min and values.version_min <= VERSION
    read_terms(tree, values, read, true)
    read("cookie", 8)
    if not values.cookie then return nil end
    if values.version_min > values.version_max then return "the lowest version is above the highest" end
    if is_zero(values.sender_run) then return "a connect request without the run of its sender" end
    if values.version_max < VERSION then values.first_number, values.path_token, values.credit_unit = 0, 0, 0 end
    return knows_terms and problem_of_terms(values) or nil
  end,
  [CONNECT_REPLY] = function(tree, values, read)
    read("to_endpoint", 2)
    read("to_key", 4)
    read("code", 1)
    read("refusal", 1)
    read("version_min", 1)
    if not values.version_min then return nil end
    if values.code ~= 0 then
      tree:add_proto_expert_info(failed, "Refused: " .. (refusals[values.refusal] or "for an unknown reason"))
      return values.refusal == 0 and "a refusal without a reason" or nil
    end
    read_terms(tree, values, read, true)
    if values.refusal ~= 0 then return "a reason, and no refusal" end
    return is_zero(values.sender_run) and "a session of a server without a run" or problem_of_terms(values)
  end,
  [PING] = function(_, values)
    return (is_zero(values.sender_run) or is_zero(values.receiver_run)) and "a ping names both runs" or nil
  end,
  [PONG] = function(_, values) return is_zero(values.receiver_run) and "a pong names the run of its receiver" or nil end,
  [COOKIE] = function(_, values, read)
    read("to_endpoint", 2)
    read("to_key", 4)
    read("cookie", 8)
    if not values.cookie then return nil end
    return (is_zero(values.receiver_run) or is_zero(values.cookie)) and "a cookie of 0, or for no run" or nil
  end}

-- The kinds that name a session (clause 7.1.3).
local function read_session_name(_, values, read)
  read("to_endpoint", 2)
  read("to_key", 4)
  read("from_key", 4)
  read("cookie", 8)
  read("from_client", 1)
  read("liveness", 1)
  if not values.liveness then return nil end
  if values.from_client > 1 then return "a flag is 0 or 1 (clause 7.1.3)" end
  return values.liveness > (values.kind == ANSWER and 2 or 0) and "liveness is out of its range (clause 7.1.3)" or nil
end

-- The session that a message is about. Nil: unknown.
local function session_of_message(values)
  local kind = values.kind
  if kind == CONNECT_REQUEST then
    return notes.by_client_key[values.session_key] or name_session(new_session(), values.session_key, nil)
  elseif kind == CONNECT_REPLY or kind == COOKIE then
    local session = notes.by_client_key[values.to_key]
    if session and kind == CONNECT_REPLY and values.code == 0 then name_session(session, nil, values.session_key) end
    return session
  elseif values.from_key then
    local client_key = values.from_client == 1 and values.from_key or values.to_key
    local server_key = values.from_client == 1 and values.to_key or values.from_key
    return notes.by_client_key[client_key] or notes.by_server_key[server_key]
  end
  return nil
end

local function note_message(values, frame, time)
  local note = {time = time, session = session_of_message(values)}
  -- The receiver of a disconnect or an ask answers it.
  local function name(kind, key) return kind .. ":" .. values.token .. ":" .. (key or "") end
  local own = name(values.kind, values.to_key)
  if is_asking[values.kind] then
    local before = notes.asked[own]
    -- A request with a cookie is not a repetition of the request without it.
    local is_again = before and before.cookie == values.cookie
    note.again = is_again and before.frame or nil
    note.request = is_again and before or {frame = frame, time = time, cookie = values.cookie}
    notes.asked[own] = note.request
  elseif answered_by[values.kind] then
    local asks = answered_by[values.kind]
    note.request = notes.asked[name(asks, values.from_key)]
    if note.request and not note.request.response then note.request.response = frame end
  end
  return note
end

local function add_found_of_message(tree, note, is_answer)
  if note.session then tree:add(found.session, note.session.number):set_generated() end
  add_link(tree, found.retransmission, note.again)
  if note.again then tree:add_proto_expert_info(sent_again, "Sent again: was in frame " .. note.again) end
  if not note.request then return end
  if is_answer then
    add_link(tree, found.request_in, note.request.frame)
    add_time(tree, found.time, note.time - note.request.time)
  else
    add_link(tree, found.response_in, note.request.response)
  end
end

-- Returns the error in a message, or nil. The fields are then in the tree and in `values`.
local function read_message(tvb, tree, values)
  local read = reader(tvb, tree, values)
  read("magic", 4)
  read("version", 1)
  read("kind", 1)
  read("length", 2)
  read("sender_run", 8)
  read("receiver_run", 8)
  if values.version and values.version ~= 1 then return "another version of messages" end
  if values.kind and not messages[values.kind] then return "an unknown kind of message" end
  read("token", 8)
  local problem = values.kind and (bodies[values.kind] or read_session_name)(tree, values, read) or nil
  local bytes = tvb:reported_len()
  local wanted = bytes_of[values.kind] or 52
  if values.kind == CONNECT_REPLY and values.code == 0 then wanted = 144 end
  if bytes ~= wanted or values.length ~= bytes then return "not the length of this kind (clause 7.1.2)" end
  return problem
end

local function dissect_message(tvb, pinfo, tree)
  local message, values = tree:add(tern, tvb()), {}
  local problem = read_message(tvb, message, values)
  local text = messages[values.kind] or "Message"
  if problem then
    message:add_proto_expert_info(malformed, problem)
    text = text .. " [malformed]"
  elseif tvb:len() == tvb:reported_len() then
    local note = note_of(pinfo, 0, function(frame, time) return note_message(values, frame, time) end)
    if note then add_found_of_message(message, note, answered_by[values.kind] ~= nil) end
    if note and note.again then text = text .. " [retransmission]" end
  end
  message:set_text("tern management: " .. text)
  pinfo.cols.info = text
end

-- --- Datagrams --------------------------------------------------------------------------------------------------------

local function is_message(tvb) return tvb:len() >= 4 and tvb(0, 4):le_uint() == MAGIC end

function tern.dissector(tvb, pinfo, tree)
  if tvb:len() == 0 then return 0 end
  pinfo.cols.protocol = "tern"
  if is_message(tvb) then
    dissect_message(tvb, pinfo, tree)
  else
    dissect_data(tvb, pinfo, tree)
  end
  return tvb:len()
end

-- True if these bytes are tern's: all of them are well-formed packets, or the first packet names a session of this
-- capture.
local function is_ours(tvb)
  if is_message(tvb) then return true end
  local packets, problem, is_known = 0, nil, false
  local _, is_whole = each_packet(tvb, function(header)
    local by_key = header.from_client and notes.by_server_key or notes.by_client_key
    packets = packets + 1
    problem = problem or problem_of(header)
    is_known = is_known or packets == 1 and by_key[header.key] ~= nil
  end, function() end)
  return is_known or packets > 0 and is_whole and not problem
end

local function dissect_if_ours(tvb, pinfo, tree)
  -- The result of the first look counts, because fewer sessions were known then.
  if not pinfo.visited then notes.claimed[pinfo.number] = is_ours(tvb) or nil end
  if not notes.claimed[pinfo.number] then return false end
  tern.dissector(tvb, pinfo, tree)
  return true
end

local own_ports = tern.prefs.ports
udp_ports:add(own_ports, tern)
udp_ports:add_for_decode_as(tern)
tern:register_heuristic("udp", dissect_if_ours)

function tern.prefs_changed()
  if own_ports == tern.prefs.ports then return end
  udp_ports:remove(own_ports, tern)
  own_ports = tern.prefs.ports
  udp_ports:add(own_ports, tern)
end
