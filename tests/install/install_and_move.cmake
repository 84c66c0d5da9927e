# Installs BUILD to STAGE, moves that to PREFIX.
foreach(variable BUILD STAGE PREFIX)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "give -D${variable}=...")
  endif()
endforeach()
file(REMOVE_RECURSE ${STAGE} ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${STAGE} COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${STAGE} ${PREFIX})
