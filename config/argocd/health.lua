-- The health of a RateLimitPolicy for Argo CD, in the ConfigMap argocd-cm:
--   resource.customizations.health.ratelimit.weir.dev_RateLimitPolicy: |
--     (this file)
-- A policy is Healthy when pods enforce it, or when nothing says that they do not. It is Degraded when it needs an edit,
-- or when pods run without it. A target that does not exist yet comes perhaps with the same sync.
local health = { status = "Progressing", message = "Waiting for Weir's controller" }
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready = conditions.Ready
if ready == nil then
  return health
end

health.message = ready.message
if conditions.Stalled ~= nil and conditions.Stalled.status == "True" then
  health.status = "Degraded"
elseif conditions.Reconciling ~= nil and conditions.Reconciling.status == "True" then
  health.status = "Progressing"
elseif ready.status == "True" then
  health.status = "Healthy"
elseif ready.status == "False" and ready.reason ~= "TargetNotFound" then
  health.status = "Degraded"
end
return health
