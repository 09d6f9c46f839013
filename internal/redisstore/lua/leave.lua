-- leave takes a member out. ARGV[1] member, ARGV[2] channel of the controller, ARGV[3] workload.
local changed = repair()
if remove({ARGV[1]}) or changed then
  raise()
  redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return 1
