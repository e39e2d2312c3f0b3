-- Fetches the paths of a list over and over and discards what comes: wrk … -s wrk.lua URL -- LIST
-- Prints what it did as JSON.

local requests, position = {}, 0

function init(arguments)
  for path in io.lines(arguments[1]) do
    requests[#requests + 1] = wrk.format("GET", path)
  end
end

function request()
  position = position % #requests + 1
  return requests[position]
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format('{"requests": %d, "seconds": %f, "errors": %d}',
    summary.requests, summary.duration / 1e6, failed))
end
