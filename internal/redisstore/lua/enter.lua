-- enter puts a workload into the set of workloads, in the place of what is no set. KEYS[1] the set, ARGV[1] the workload.
local _, no_set = of_type('SADD', KEYS[1], ARGV[1])
if no_set then
  redis.call('PEXPIRE', KEYS[1], 0)
  redis.call('SADD', KEYS[1], ARGV[1])
end
return 1
