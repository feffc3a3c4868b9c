-- Completions from Paceline as ghost text. Needs Neovim 0.7 or newer, and `paceline lsp`.
--
-- The language server waits for pauses in typing, ends requests that are out of date and serves what
-- was predicted from its memory, so this file asks with every change and shows what comes.

local text = require("paceline.text")

local M = {}

local namespace = vim.api.nvim_create_namespace("paceline")

local defaults = {
  cmd = { "paceline", "lsp", "--stdio" },
  cmd_env = nil,
  -- Sent to the language server; see its README. For example { url = "ws://10.0.0.7:8765" }.
  settings = {},
  -- Asks while you type; false asks by the key alone.
  auto = true,
  -- Nil for all of them; `excluded_filetypes` are left out in any case.
  filetypes = nil,
  excluded_filetypes = { "gitcommit", "gitrebase", "help" },
  -- False for one of them leaves its key alone.
  keymaps = {
    accept = "<Tab>",
    accept_word = "<M-w>",
    accept_line = "<M-l>",
    dismiss = "<C-]>",
    request = "<M-\\>",
  },
  highlight = "Comment",
}

local config = nil
local client_id = nil
-- What is shown: buffer, row and column (bytes) where the completion starts, its item, its text.
local shown = nil
-- The request that runs: id, buffer.
local pending = nil
-- The kind of a request that waits for the language server to be ready.
local waiting = nil
-- Where the cursor was when we last looked, as text.
local last_seen = nil

M.status = { kind = "inactive", busy = false, message = "" }

-- Methods of a client take it as their first argument from 0.11 on.
local function call(client, name, ...)
  if vim.fn.has("nvim-0.11") == 1 then
    return client[name](client, ...)
  end
  return client[name](...)
end

local function get_client()
  return client_id and vim.lsp.get_client_by_id(client_id)
end

local function cursor()
  local at = vim.api.nvim_win_get_cursor(0)
  return at[1] - 1, at[2]
end

-- Showing

local function hide()
  if shown and vim.api.nvim_buf_is_valid(shown.buffer) then
    vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  end
  shown = nil
end

--- What is left of the completion at the cursor: nil when something else was typed.
local function rest_at_cursor()
  local row, column = cursor()
  if row < shown.row or (row == shown.row and column < shown.column) then
    return nil
  end
  local typed = table.concat(
    vim.api.nvim_buf_get_text(shown.buffer, shown.row, shown.column, row, column, {}),
    "\n"
  )
  if #typed < #shown.text and vim.startswith(shown.text, typed) then
    return shown.text:sub(#typed + 1), #typed
  end
  return nil
end

local function draw(rest)
  vim.api.nvim_buf_clear_namespace(shown.buffer, namespace, 0, -1)
  local row, column = cursor()
  local lines = vim.split(rest, "\n", { plain = true })
  local mark = { virt_lines = {}, hl_mode = "combine" }
  if lines[1] ~= "" then
    mark.virt_text = { { lines[1], "PacelineGhost" } }
    if vim.fn.has("nvim-0.10") == 1 then
      mark.virt_text_pos = "inline"
    else
      -- An overlay hides what is behind the cursor, so that is drawn after it.
      mark.virt_text_pos = "overlay"
      local line = vim.api.nvim_buf_get_lines(shown.buffer, row, row + 1, false)[1] or ""
      if #line > column then
        table.insert(mark.virt_text, { line:sub(column + 1), "Normal" })
      end
    end
  end
  for at = 2, #lines do
    table.insert(mark.virt_lines, { { lines[at], "PacelineGhost" } })
  end
  vim.api.nvim_buf_set_extmark(shown.buffer, namespace, row, column, mark)
end

local function show(item, buffer, row, column, insert)
  shown = { item = item, buffer = buffer, row = row, column = column, text = insert }
  local rest = rest_at_cursor()
  if not rest then
    shown = nil
    return
  end
  draw(rest)
  local client = get_client()
  if client then
    call(client, "notify", "textDocument/didShowCompletion", { item = item })
  end
end

-- Asking

local function cancel()
  waiting = nil
  if pending then
    local client = get_client()
    if client then
      call(client, "cancel_request", pending.id)
    end
    pending = nil
  end
end

local function on_answer(asked, failure, result)
  if pending ~= asked then
    return -- another request has taken its place
  end
  pending = nil
  local item = not failure and result and (result.items or result)[1]
  if not item or not vim.startswith(vim.api.nvim_get_mode().mode, "i") then
    return
  end
  if vim.api.nvim_get_current_buf() ~= asked.buffer then
    return
  end
  local row, column = asked.row, asked.column
  if item.range then
    row = item.range.start.line
    local line = vim.api.nvim_buf_get_lines(asked.buffer, row, row + 1, false)[1] or ""
    column = text.byte_index(line, item.range.start.character)
  end
  hide()
  show(item, asked.buffer, row, column, item.insertText)
end

local function ask(kind)
  cancel()
  local client = get_client()
  local buffer = vim.api.nvim_get_current_buf()
  if not client or not vim.lsp.buf_is_attached(buffer, client_id) then
    return
  end
  if not client.initialized then
    waiting = kind -- it does not have the text yet
    return
  end
  local row, column = cursor()
  local line = vim.api.nvim_buf_get_lines(buffer, row, row + 1, false)[1] or ""
  local asked = { buffer = buffer, row = row, column = column }
  local sent, id = call(client, "request", "textDocument/inlineCompletion", {
    textDocument = { uri = vim.uri_from_bufnr(buffer) },
    position = { line = row, character = text.utf16_length(line:sub(1, column)) },
    context = { triggerKind = kind },
  }, function(failure, result)
    on_answer(asked, failure, result)
  end, buffer)
  if sent then
    asked.id = id
    pending = asked
  end
end

--- Ask now, without waiting for a pause.
function M.request()
  ask(1)
end

-- Typing moves the cursor and changes the text, which are two events for one key.
local function on_change()
  local row, column = cursor()
  local seen = table.concat({ vim.api.nvim_get_current_buf(), vim.b.changedtick, row, column }, ":")
  if seen == last_seen then
    return
  end
  last_seen = seen
  if shown then
    local rest = shown.buffer == vim.api.nvim_get_current_buf() and rest_at_cursor()
    if rest then
      draw(rest)
      return
    end
    hide()
  end
  if config.auto then
    ask(2)
  else
    cancel()
  end
end

local function on_leave()
  cancel()
  hide()
  last_seen = nil
end

-- Accepting

function M.is_shown()
  return shown ~= nil and shown.buffer == vim.api.nvim_get_current_buf() and rest_at_cursor() ~= nil
end

local function insert(part)
  local row, column = cursor()
  local lines = vim.split(part, "\n", { plain = true })
  vim.bo.undolevels = vim.bo.undolevels -- a step of its own for undo
  vim.api.nvim_buf_set_text(shown.buffer, row, column, row, column, lines)
  local last = #lines == 1 and column + #part or #lines[#lines]
  vim.api.nvim_win_set_cursor(0, { row + #lines, last })
end

local function accept(take)
  if not M.is_shown() then
    return false
  end
  local rest, num_typed = rest_at_cursor()
  local part = take(rest)
  local client, item = get_client(), shown.item
  insert(part)
  if #part < #rest then
    local so_far = shown.text:sub(1, num_typed + #part)
    if client then
      call(client, "notify", "textDocument/didPartiallyAcceptCompletion", {
        item = item,
        acceptedLength = text.utf16_length(so_far),
      })
    end
    on_change()
    return true
  end
  hide()
  if client and item.command then
    call(client, "request", "workspace/executeCommand", {
      command = item.command.command,
      arguments = item.command.arguments,
    }, function() end)
  end
  on_change()
  return true
end

--- Insert what is shown; false if nothing is.
function M.accept()
  return accept(function(rest)
    return rest
  end)
end

--- Insert its next word; the rest stays.
function M.accept_word()
  return accept(text.first_word)
end

--- Insert its next line; the rest stays.
function M.accept_line()
  return accept(text.first_line)
end

--- Take the completion away.
function M.dismiss()
  cancel()
  hide()
end

-- Starting

local function is_wanted(buffer)
  local filetype = vim.bo[buffer].filetype
  if vim.bo[buffer].buftype ~= "" or vim.tbl_contains(config.excluded_filetypes, filetype) then
    return false
  end
  return config.filetypes == nil or vim.tbl_contains(config.filetypes, filetype)
end

local function on_status(_, status)
  M.status = status
  vim.api.nvim_exec_autocmds("User", { pattern = "PacelineStatus", modeline = false })
end

local function on_attach()
  local kind = waiting
  waiting = nil
  if kind then
    vim.schedule(function()
      if vim.startswith(vim.api.nvim_get_mode().mode, "i") then
        ask(kind)
      end
    end)
  end
end

local function client_config()
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
  if capabilities.general then
    capabilities.general.positionEncodings = { "utf-16" }
  end
  return {
    name = "paceline",
    cmd = config.cmd,
    cmd_env = config.cmd_env,
    root_dir = vim.fn.getcwd(),
    capabilities = capabilities,
    offset_encoding = "utf-16",
    init_options = config.settings,
    flags = { debounce_text_changes = 0 },
    on_attach = on_attach,
    handlers = { ["paceline/didChangeStatus"] = on_status },
    on_exit = vim.schedule_wrap(function(code)
      client_id = nil
      M.status = { kind = "error", busy = false, message = "the language server ended: " .. code }
    end),
  }
end

local is_missing_told = false

-- Neovim would complain at every buffer and every key; once is enough.
local function is_installed()
  if vim.fn.executable(config.cmd[1]) == 1 then
    return true
  end
  local message = ("paceline: no program %s; set `cmd` to the path of yours"):format(config.cmd[1])
  M.status = { kind = "error", busy = false, message = message }
  if not is_missing_told then
    is_missing_told = true
    vim.notify(message, vim.log.levels.ERROR)
  end
  return false
end

--- Have completions in a buffer, the current one by default.
function M.attach(buffer)
  buffer = buffer or vim.api.nvim_get_current_buf()
  if not is_wanted(buffer) then
    return
  end
  if not get_client() then
    if not is_installed() then
      return
    end
    local start = vim.fn.has("nvim-0.11") == 1 and vim.lsp.start or vim.lsp.start_client
    client_id = start(client_config(), { attach = false })
    if not client_id then
      M.status = { kind = "error", busy = false, message = "the language server did not start" }
      return
    end
    M.status = { kind = "normal", busy = false, message = "" }
  end
  if not vim.lsp.buf_is_attached(buffer, client_id) then
    vim.lsp.buf_attach_client(buffer, client_id)
  end
end

local function map(name, action)
  local key = config.keymaps[name]
  if key then
    vim.keymap.set("i", key, action, { silent = true, desc = "Paceline: " .. name })
  end
end

-- The key does what it did before when there is nothing to accept.
local function map_accept(name)
  local key = config.keymaps[name]
  if not key then
    return
  end
  vim.keymap.set("i", key, function()
    if not M.is_shown() then
      return key
    end
    vim.schedule(M[name])
    return ""
  end, { expr = true, silent = true, desc = "Paceline: " .. name })
end

--- Start; call it once. Options are those of `defaults` above.
function M.setup(options)
  config = vim.tbl_deep_extend("force", defaults, options or {})
  vim.api.nvim_set_hl(0, "PacelineGhost", { link = config.highlight, default = true })
  for _, name in ipairs({ "accept", "accept_word", "accept_line" }) do
    map_accept(name)
  end
  map("dismiss", M.dismiss)
  map("request", M.request)
  local group = vim.api.nvim_create_augroup("paceline", { clear = true })
  local function on(events, action)
    vim.api.nvim_create_autocmd(events, { group = group, callback = action })
  end
  on({ "BufEnter", "FileType" }, function(event)
    -- A buffer without a name may be about to get one, and its text with it: it waits for typing.
    if vim.api.nvim_buf_get_name(event.buf) ~= "" then
      M.attach(event.buf)
    end
  end)
  on("InsertEnter", function(event)
    M.attach(event.buf)
  end)
  on("BufFilePost", function(event)
    if client_id and vim.lsp.buf_is_attached(event.buf, client_id) then
      vim.lsp.buf_detach_client(event.buf, client_id)
      M.attach(event.buf)
    end
  end)
  on({ "TextChangedI", "CursorMovedI" }, on_change)
  on({ "InsertLeave", "BufLeave" }, on_leave)
  if vim.api.nvim_buf_get_name(0) ~= "" then
    M.attach()
  end
end

return M
